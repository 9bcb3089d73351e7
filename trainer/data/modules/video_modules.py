"""2D to 3D and 1D convolutions with long tails: video, images, sound, generators, losses on images."""
from written_base import *
C1,C2,C3,T1,T2,T3=nn.Conv1d,nn.Conv2d,nn.Conv3d,nn.ConvTranspose1d,nn.ConvTranspose2d,nn.ConvTranspose3d
def B(m,**bufs):
    for k,v in bufs.items(): m.register_buffer(k,v)
    return m
class K(nn.Module):
    """a fixed tensor"""
    def __init__(s,t): super().__init__(); s.register_buffer("t",t)
def lrelu(x): return F.leaky_relu(x,0.1)
fn("vd_minmax_gap","conv",lambda c,x:(lambda y:(y.amax(1)-y.amin(1)).mul(1/3).tanh()*y[:,3]+torch.logsumexp(y,1))(c(x)),(2,7,13,18),layers=lambda:(C2(7,22,(3,5),stride=(1,2),padding=(2,1),dilation=(2,1)),),train=True)
fn("vd_tr3_minsoft","conv",lambda c,s,x:(lambda y:(torch.softmax(y.amin(2),1)*s+y.mean(2).clamp(-.7,.9)))(c(x)),(2,6,3,5,7),layers=lambda:(T3(6,10,3,stride=(1,2,2),padding=1,output_padding=(0,1,0)),P(10,1,1)),train=True)
fn("vd_argmax_palette","conv",lambda c,p,x:p[c(x).argmax(1)].permute(0,3,1,2)+F.avg_pool2d(x,3,1,1)[:,:4],(2,6,17,15),layers=lambda:(C2(6,9,3,padding=1),P(9,4)))
def shuf(x,g):
    n,c=x.shape[:2]; return x.view(n,g,c//g,*x.shape[2:]).transpose(1,2).reshape(x.shape)
class ShuffleUnit(nn.Module):
    def __init__(s,c,g): super().__init__(); s.g=g; s.a=C2(c,c,1,groups=g); s.d=C2(c,c,(3,5),padding=(1,2),groups=c,bias=False); s.n=nn.BatchNorm2d(c); s.n2=nn.BatchNorm2d(c); s.b=C2(c,c,1,groups=g)
    def forward(s,x):
        y=shuf(F.relu6(s.n(s.a(x))),s.g); z=s.n2(s.d(y)); z=s.b(z)
        return shuf(torch.cat([F.relu(x+z),F.max_pool2d(z,3,1,1)-y],1),2)
add("vd_shuffleunit","block",lambda:(ShuffleUnit(12,3),(R(3,12,11,14,requires_grad=True),)),True)
def unshuf3(x,a,b,c):
    n,ch,d,h,w=x.shape
    return x.view(n,ch,d//a,a,h//b,b,w//c,c).permute(0,1,3,5,7,2,4,6).reshape(n,ch*a*b*c,d//a,h//b,w//c)
def shuf3(x,a,b,c):
    n,ch,d,h,w=x.shape; o=ch//(a*b*c)
    return x.view(n,o,a,b,c,d,h,w).permute(0,1,5,2,6,3,7,4).reshape(n,o,d*a,h*b,w*c)
fn("vd_pixshuf3_skip","conv",lambda c,g,x:(lambda y:F.elu(y*g.view(1,-1,1,1,1))+F.interpolate(x,scale_factor=(1,2,3),mode="nearest")[:,:3]*0.5)(shuf3(c(x),1,2,3)),(2,5,4,5,6),layers=lambda:(C3(5,18,3,padding=1),P(3)),train=True)
fn("vd_pixunshuf3_gn","conv",lambda c,n,x:F.silu(n(c(unshuf3(x,2,2,3))))+unshuf3(x,2,2,3).mean(1,keepdim=True),(2,2,6,8,9),layers=lambda:(C3(24,10,(3,1,3),padding=(1,0,1),bias=False),nn.GroupNorm(5,10)),train=True)
fn("vd_two_windows","conv",lambda c,x:(lambda y:F.avg_pool2d(F.max_pool2d(y,(3,2),stride=2,padding=(1,0))**2,2,stride=1).add(1e-6).sqrt()-y[:,:,1::2,1::2][:,:,:6,:5].abs()*0.1)(F.pad(c(x),(1,1,1,1),mode="reflect")),(2,5,13,13),layers=lambda:(C2(5,11,3,padding=0),),train=True)
fn("vd_pool_after_up","conv",lambda c,x:F.avg_pool2d(F.interpolate(F.gelu(c(x)),scale_factor=2,mode="nearest"),3,stride=2,padding=1,count_include_pad=False)*torch.sigmoid(x.mean(1,keepdim=True)),(2,6,11,14),layers=lambda:(C2(6,9,3,padding=1),),train=True)
class WS(nn.Module):
    def __init__(s,i,o,k,g=1): super().__init__(); s.w=P(o,i//g,k,k); s.gain=nn.Parameter(torch.ones(o,1,1,1)); s.g=g
    def forward(s,x):
        v,m=torch.var_mean(s.w,(1,2,3),keepdim=True,unbiased=False)
        w=(s.w-m)*torch.rsqrt((v*s.w[0].numel()).clamp(min=1e-4))*s.gain
        return F.relu(F.conv2d(F.pad(x,(2,1,0,2),mode="replicate"),w,groups=s.g)*1.7139)-0.3*x.mean()
add("vd_ws_nf","conv",lambda:(WS(8,14,4,2),(R(2,8,12,15,requires_grad=True),)),True)
class SpecScale(nn.Module):
    def __init__(s): super().__init__(); s.w=P(10,6,3,3); s.register_buffer("u",F.normalize(R(10),dim=0)); s.ls=nn.Parameter(torch.tensor(.4))
    def forward(s,x):
        m=s.w.flatten(1); v=F.normalize(m.t()@s.u,dim=0,eps=1e-12); u=F.normalize(m@v,dim=0,eps=1e-12); sig=(u*(m@v)).sum()
        y=F.conv2d(x,s.w/sig*s.ls.exp(),stride=2,padding=1)
        return lrelu(y)+y.roll(1,2)*0.25, sig
add("vd_spectral","conv",lambda:(SpecScale(),(R(2,6,15,17,requires_grad=True),)),True)
class LN2(nn.Module):
    def __init__(s,c,e=1e-6): super().__init__(); s.w=P(c,scale=1); s.b=P(c); s.e=e
    def forward(s,x):
        u=x.mean(1,keepdim=True); v=(x-u).pow(2).mean(1,keepdim=True); return s.w[:,None,None]*((x-u)/torch.sqrt(v+s.e))+s.b[:,None,None]
class GRNBlock(nn.Module):
    def __init__(s,c): super().__init__(); s.d=C2(c,c,7,padding=3,groups=c); s.n=LN2(c); s.a=C2(c,3*c,1); s.b=C2(3*c,c,1); s.g=P(1,3*c,1,1); s.be=P(1,3*c,1,1)
    def forward(s,x):
        y=F.gelu(s.a(s.n(s.d(x)))); gx=y.norm(p=2,dim=(2,3),keepdim=True); nx=gx/(gx.mean(1,keepdim=True)+1e-6)
        return x+s.b(s.g*(y*nx)+s.be+y)
add("vd_grn","block",lambda:(GRNBlock(7),(R(2,7,13,10,requires_grad=True),)),True)
class ModConv(nn.Module):
    def __init__(s,i,o,z): super().__init__(); s.w=P(1,o,i,3,3); s.aff=nn.Linear(z,i); s.nz=P(1); s.b=P(o)
    def forward(s,x,z,noise):
        b,i,h,w=x.shape; st=s.aff(z)+1; wt=s.w*st[:,None,:,None,None]; d=torch.rsqrt((wt*wt).sum((2,3,4),keepdim=True)+1e-8); wt=(wt*d).flatten(0,1)
        y=F.conv2d(x.reshape(1,b*i,h,w),wt,padding=1,groups=b).view(b,-1,h,w)
        y=y+noise*s.nz; return (F.leaky_relu(y+s.b.view(1,-1,1,1),.2)*math.sqrt(2)).clamp(-256,256)
add("vd_modulated","conv",lambda:(ModConv(6,9,11),(R(3,6,10,13,requires_grad=True),R(3,11,requires_grad=True),R(3,1,10,13,requires_grad=True))),True)
class AdaIN(nn.Module):
    def __init__(s,c,z): super().__init__(); s.c=T2(c,c,(4,3),stride=(2,1),padding=1); s.f=nn.Linear(z,2*c)
    def forward(s,x,z):
        y=s.c(x); v,m=torch.var_mean(y,(2,3),keepdim=True); g,b=s.f(z)[...,None,None].chunk(2,1)
        return F.mish((1+g)*(y-m)*(v+1e-5).rsqrt()+b), (y*y).mean((1,2,3))
add("vd_adain_t","conv",lambda:(AdaIN(9,14),(R(2,9,8,11,requires_grad=True),R(2,14,requires_grad=True))),True)
class SPADE(nn.Module):
    def __init__(s,c,l): super().__init__(); s.sh=C2(l,10,3,padding=1); s.g=C2(10,c,3,padding=1); s.b=C2(10,c,3,padding=1); s.n=nn.BatchNorm2d(c,affine=False); s.o=C2(c,c+1,3,padding=1)
    def forward(s,x,m):
        m=F.interpolate(m,size=x.shape[2:],mode="nearest"); a=F.relu(s.sh(m)); y=s.n(x)*(1+s.g(a))+s.b(a)
        return s.o(F.leaky_relu(y,.2))+x.amax(1,keepdim=True)
add("vd_spade","block",lambda:(SPADE(7,4),(R(2,7,12,9,requires_grad=True),R(2,4,6,3,requires_grad=True))),True)
class Masked(nn.Module):
    def __init__(s,kind): 
        super().__init__(); s.w=P(16,6,5,5); m=torch.ones(5,5); m[2,2+(kind=="B"):]=0; m[3:]=0; s.register_buffer("m",m); s.p=C2(8,6,1)
    def forward(s,x):
        y=F.conv2d(x,s.w*s.m,padding=2); a,b=y.chunk(2,1); return s.p(torch.tanh(a)*torch.sigmoid(b))+x
add("vd_pixelcnn_b","conv",lambda:(Masked("B"),(R(2,6,11,14,requires_grad=True),)),True)
add("vd_pixelcnn_a","conv",lambda:(Masked("A"),(R(2,6,9,13),)))
class Partial(nn.Module):
    def __init__(s,i,o): super().__init__(); s.c=C2(i,o,3,padding=1,bias=False); s.b=P(o)
    def forward(s,x,m):
        mf=m.to(x.dtype); cnt=F.avg_pool2d(mf,3,1,1)*9; y=s.c(x*mf); ok=cnt>0.5
        y=torch.where(ok,y*(9/(cnt+1e-8))+s.b.view(1,-1,1,1),torch.zeros_like(y)); return F.relu(y),ok
add("vd_partialconv","conv",lambda:(Partial(5,8),(R(2,5,14,11,requires_grad=True),torch.rand(2,1,14,11)<.4)),True)
def shifted(x,w):
    xp=F.pad(x,(1,1,2,2),mode="circular"); h,wd=x.shape[2:]
    return sum(w[:,k,None,None]*xp[:,:,i:i+h,j:j+wd] for k,(i,j) in enumerate([(0,0),(0,2),(2,1),(4,0),(4,2)]))
fn("vd_shifted_sum","conv",lambda c,w,x:F.hardswish(shifted(c(x),w))*c(x).sigmoid(),(2,5,12,10),layers=lambda:(C2(5,7,1),P(7,5)),train=True)
def costvol(a,b,r):
    h,w=a.shape[2:]; bp=F.pad(b,(r,r,r,r)); return torch.stack([(a*bp[:,:,i:i+h,j:j+w]).mean(1) for i in range(2*r+1) for j in range(2*r+1)],1)
fn("vd_costvol","conv",lambda c,d,x,y:d(torch.cat([lrelu(costvol(c(x),c(y),1)),x],1)),(2,5,10,13),(2,5,10,13),layers=lambda:(C2(5,8,3,padding=1),C2(14,4,3,padding=1)),train=True)
def costvol_stereo(a,b,D): return torch.stack([F.pad(a[...,d:]*b[...,:b.shape[-1]-d],(d,0)).mean(1) for d in range(D)],1)
fn("vd_stereo_softargmin","conv",lambda c,x,y:(lambda v:(torch.softmax(-v,1)*torch.arange(4.).view(1,4,1,1)).sum(1))(costvol_stereo(c(x),c(y),4)),(2,4,9,19),(2,4,9,19),layers=lambda:(C2(4,6,3,padding=1),),train=True)
class Warp(nn.Module):
    def __init__(s): super().__init__(); s.f=C2(8,2,3,padding=1)
    def forward(s,a,b):
        fl=torch.tanh(s.f(torch.cat([a,b],1))); u,v=fl[:,:1],fl[:,1:]; bp=F.pad(b,(1,1,1,1),mode="replicate"); h,w=b.shape[2:]; y=0
        for i in (-1,0,1):
            for j in (-1,0,1): y=y+F.relu(1-(v-i).abs())*F.relu(1-(u-j).abs())*bp[:,:,1+i:1+i+h,1+j:1+j+w]
        return y, ((y-a)**2+1e-6).sqrt().mean((1,2,3))+0.1*(fl[:,:,1:]-fl[:,:,:-1]).abs().mean()
add("vd_flow_warp","conv",lambda:(Warp(),(R(2,4,9,12,requires_grad=True),R(2,4,9,12,requires_grad=True))),True)
class BlurPool(nn.Module):
    def __init__(s,c,k=(1.,3.,3.,1.)): super().__init__(); t=torch.tensor(k); t=t[:,None]*t; s.register_buffer("k",(t/t.sum())[None,None].repeat(c,1,1,1)); s.c=c; s.a=C2(c,c,3,padding=1)
    def forward(s,x):
        y=F.relu(s.a(x)); return F.conv2d(F.pad(y,(1,2,1,2),mode="reflect"),s.k,stride=2,groups=s.c)-F.avg_pool2d(x,2,ceil_mode=True)
add("vd_blurpool","conv",lambda:(BlurPool(6),(R(2,6,13,15,requires_grad=True),)),True)
class LapPyr(nn.Module):
    def __init__(s,c): super().__init__(); t=torch.tensor([1.,4,6,4,1]); s.register_buffer("k",(t[:,None]*t/256)[None,None].expand(c,1,5,5).contiguous()); s.c=c
    def g(s,x): return F.conv2d(F.pad(x,(2,2,2,2),mode="reflect"),s.k,groups=s.c)
    def forward(s,a,b):
        l=0
        for k in range(2):
            da=s.g(a)[:,:,::2,::2]; db=s.g(b)[:,:,::2,::2]; ha=a-F.interpolate(da,size=a.shape[2:],mode="bilinear",align_corners=False); hb=b-F.interpolate(db,size=b.shape[2:],mode="bilinear",align_corners=False)
            l=l+2.**k*F.l1_loss(ha,hb); a,b=da,db
        return l+(a-b).abs().mean()
add("vd_lappyr","loss",lambda:(LapPyr(3),(R(2,3,18,22,requires_grad=True),R(2,3,18,22,requires_grad=True))),True)
class Sobel(nn.Module):
    def __init__(s): super().__init__(); k=torch.tensor([[1.,0,-1],[2,0,-2],[1,0,-1]]); s.register_buffer("k",torch.stack([k,k.t()])[:,None])
    def forward(s,x):
        g=F.conv2d(F.pad(x.mean(1,keepdim=True),(1,)*4,mode="replicate"),s.k); gx,gy=g.unbind(1); mag=torch.sqrt(gx*gx+gy*gy+1e-6); th=torch.atan2(gy,gx+1e-6)
        return mag, torch.where(mag>mag.mean((1,2),keepdim=True),th,torch.zeros_like(th)), F.max_pool2d(mag[:,None],3,1,1)[:,0]==mag
add("vd_sobel_nms","conv",lambda:(Sobel(),(R(3,4,17,21),)))
class Involution(nn.Module):
    def __init__(s,c,g,k): super().__init__(); s.g,s.k=g,k; s.r=C2(c,c//2,1); s.n=nn.BatchNorm2d(c//2); s.sp=C2(c//2,k*k*g,1)
    def forward(s,x):
        b,c,h,w=x.shape; ker=s.sp(F.relu(s.n(s.r(x)))).view(b,s.g,1,s.k*s.k,h,w); u=F.unfold(x,s.k,padding=s.k//2).view(b,s.g,c//s.g,s.k*s.k,h,w); return (ker*u).sum(3).view(b,c,h,w)
add("vd_involution","block",lambda:(Involution(8,2,3),(R(2,8,9,11,requires_grad=True),)),True)
class DynConv(nn.Module):
    def __init__(s,i,o,E): super().__init__(); s.w=P(E,o,i,3,3); s.b=P(E,o); s.at=nn.Linear(i,E); s.o=o
    def forward(s,x):
        b,i,h,w=x.shape; a=F.softmax(s.at(x.mean((2,3)))/30.,-1); wt=torch.einsum("be,eoikl->boikl",a,s.w).reshape(b*s.o,i,3,3); bs=(a@s.b).reshape(-1)
        y=F.conv2d(x.view(1,b*i,h,w),wt,bs,padding=1,groups=b).view(b,s.o,h,w); return F.relu6(y+3)/6*y
add("vd_dynconv","conv",lambda:(DynConv(5,7,4),(R(3,5,9,10,requires_grad=True),)),True)
class Dense(nn.Module):
    def __init__(s,c,g): super().__init__(); s.n=nn.ModuleList([nn.BatchNorm2d(c+g*i) for i in range(3)]); s.c=nn.ModuleList([C2(c+g*i,g,3,padding=1,bias=False) for i in range(3)]); s.t=C2(c+3*g,c,1)
    def forward(s,x):
        for n,c in zip(s.n,s.c): x=torch.cat([x,c(F.relu(n(x)))],1)
        return F.avg_pool2d(s.t(x),2)
add("vd_dense3","block",lambda:(Dense(6,5),(R(2,6,10,13,requires_grad=True),)),True)
class Incep(nn.Module):
    def __init__(s,c): super().__init__(); s.a=C2(c,5,1); s.b=C2(c,6,(1,7),padding=(0,3)); s.b2=C2(6,7,(7,1),padding=(3,0)); s.p=C2(c,3,1); s.o=C2(15,c,1)
    def forward(s,x):
        y=torch.cat([F.relu(s.a(x)),F.relu(s.b2(F.relu(s.b(x)))),s.p(F.avg_pool2d(x,3,1,1))],1); return F.relu(x+0.17*s.o(y))
add("vd_incep_res","block",lambda:(Incep(8),(R(2,8,12,11,requires_grad=True),)),True)
class UStep(nn.Module):
    def __init__(s,c): super().__init__(); s.d=C2(c,2*c,3,stride=2,padding=1); s.n=nn.InstanceNorm2d(2*c,affine=True); s.u=T2(2*c,c,3,stride=2,padding=1,output_padding=(0,1)); s.o=C2(2*c,c,3,padding=1); s.g=nn.GroupNorm(3,c)
    def forward(s,x):
        d=F.leaky_relu(s.n(s.d(x)),.01); u=F.relu(s.u(d)); return F.silu(s.g(s.o(torch.cat([x,u],1))))+x, d.amax((2,3))
add("vd_ustep2","block",lambda:(UStep(6),(R(2,6,13,14,requires_grad=True),)),True)
class UStep3(nn.Module):
    def __init__(s,c): super().__init__(); s.d=C3(c,c+3,3,padding=1); s.n=nn.InstanceNorm3d(c+3); s.o=C3(2*c+3,c,(1,3,3),padding=(0,1,1)); s.a=nn.PReLU(c)
    def forward(s,x):
        d=F.max_pool3d(x,(1,2,2),ceil_mode=True); d=F.leaky_relu(s.n(s.d(d)),.01); u=F.interpolate(d,size=x.shape[2:],mode="nearest"); return s.a(s.o(torch.cat([u,x],1))+x)
add("vd_ustep3","block",lambda:(UStep3(4),(R(2,4,5,9,7,requires_grad=True),)),True)
class VNet(nn.Module):
    def __init__(s): super().__init__(); s.c=C3(2,8,5,padding=2); s.d=C3(8,12,2,stride=2); s.b=nn.BatchNorm3d(8); s.e=nn.PReLU(8)
    def forward(s,x):
        y=s.b(s.c(x))+x.repeat(1,4,1,1,1); y=s.e(y); z=s.d(y); return F.elu(z)+y.mean((1,2,3,4)).view(-1,1,1,1,1), y[:,::3].square()
add("vd_vnet_in","block",lambda:(VNet(),(R(2,2,6,8,6,requires_grad=True),)),True)
class R21(nn.Module):
    def __init__(s,i,m,o): super().__init__(); s.a=C3(i,m,(1,3,3),padding=(0,1,1),bias=False); s.n=nn.BatchNorm3d(m); s.b=C3(m,o,(3,1,1),padding=(1,0,0),bias=False); s.n2=nn.BatchNorm3d(o); s.sk=C3(i,o,1,stride=1)
    def forward(s,x): return F.relu(s.n2(s.b(F.relu(s.n(s.a(x)))))+s.sk(x)).mean((3,4))
add("vd_r2p1d","block",lambda:(R21(5,9,7),(R(2,5,4,8,9,requires_grad=True),)),True)
class SlowFast(nn.Module):
    def __init__(s): super().__init__(); s.f=C3(3,4,(5,3,3),padding=(2,1,1)); s.s=C3(3,8,(1,3,3),padding=(0,1,1)); s.l=C3(4,6,(5,1,1),stride=(4,1,1),padding=(2,0,0)); s.h=C3(14,5,1)
    def forward(s,x):
        f=F.relu(s.f(x)); sl=F.relu(s.s(x[:,:,::4])); y=s.h(torch.cat([sl,s.l(f)],1)); return F.relu(y)+sl[:,:5], f.mean((2,3,4))
add("vd_slowfast","block",lambda:(SlowFast(),(R(2,3,8,7,9,requires_grad=True),)),True)
def tshift(x,T,d):
    n,c,h,w=x.shape; v=x.view(n//T,T,c,h,w); k=c//d; l=F.pad(v[:,1:,:k],(0,0,0,0,0,0,0,1)); r=F.pad(v[:,:-1,k:2*k],(0,0,0,0,0,0,1,0)); return torch.cat([l,r,v[:,:,2*k:]],2).view(n,c,h,w)
fn("vd_tsm","conv",lambda c,b,x:F.relu(b(c(tshift(x,4,3)))+x),(8,9,7,10),layers=lambda:(C2(9,9,3,padding=1,bias=False),nn.BatchNorm2d(9)),train=True)
class NonLocal3(nn.Module):
    def __init__(s,c,m): super().__init__(); s.t=C3(c,3*m,1); s.o=C3(m,c,1); s.n=nn.BatchNorm3d(c); s.m=m
    def forward(s,x):
        b,c,T,h,w=x.shape; q,k,v=s.t(x).split(s.m,1); k=F.max_pool3d(k,(1,2,2)).flatten(2); v=F.max_pool3d(v,(1,2,2)).flatten(2)
        a=(q.flatten(2).mT@k).softmax(-1); y=(a@v.mT).mT.reshape(b,s.m,T,h,w); return x+s.n(s.o(y))
add("vd_nonlocal3","block",lambda:(NonLocal3(6,5),(R(2,6,3,6,8,requires_grad=True),)),True)
class Wave(nn.Module):
    def __init__(s,c,d,cc): super().__init__(); s.c=C1(c,2*c,2,dilation=d); s.q=C1(cc,2*c,1); s.o=C1(c,2*c,1); s.d=d
    def forward(s,x,h):
        y=s.c(F.pad(x,(s.d,0)))+s.q(h); a,b=y.chunk(2,1); z=torch.tanh(a)*torch.sigmoid(b); r,k=s.o(z).chunk(2,1); return (x+r)*math.sqrt(.5), k
add("vd_wavenet","block",lambda:(Wave(9,4,5),(R(2,9,61,requires_grad=True),R(2,5,61,requires_grad=True))),True)
class MRF(nn.Module):
    def __init__(s,c): super().__init__(); s.u=T1(c+3,c,8,stride=4,padding=2); s.a=nn.ModuleList([C1(c,c,k,padding=(k-1)//2*d,dilation=d) for k,d in((3,1),(7,3))]); s.b=nn.ModuleList([C1(c,c,k,padding=(k-1)//2) for k in(3,7)])
    def forward(s,x):
        x=s.u(lrelu(x)); o=None
        for a,b in zip(s.a,s.b):
            y=b(lrelu(a(lrelu(x))))+x; o=y if o is None else o+y
        return torch.tanh(lrelu(o/2))
add("vd_hifi_mrf","block",lambda:(MRF(6),(R(2,9,23,requires_grad=True),)),True)
fn("vd_snake","conv",lambda a,c,x:(lambda y:y+(1/(a.exp()+1e-9))*torch.sin(y*a.exp())**2)(c(x)+x),(2,10,67),layers=lambda:(P(1,10,1),C1(10,10,7,padding=9,dilation=3)),train=True)
class TasBlock(nn.Module):
    def __init__(s,b,h): super().__init__(); s.a=C1(b,h,1); s.d=C1(h,h,3,padding=4,dilation=4,groups=h); s.r=C1(h,b,1); s.s=C1(h,b-2,1); s.p=nn.PReLU(); s.q=nn.PReLU(); s.g=P(h,1,scale=1); s.be=P(h,1)
    def gln(s,x): m=x.mean((1,2),keepdim=True); v=((x-m)**2).mean((1,2),keepdim=True); return s.g*(x-m)/(v+1e-8).sqrt()+s.be
    def forward(s,x):
        y=s.gln(s.q(s.d(s.gln(s.p(s.a(x)))))); return x+s.r(y), s.s(y)
add("vd_tasnet","block",lambda:(TasBlock(9,13),(R(2,9,47,requires_grad=True),)),True)
class TasMask(nn.Module):
    def __init__(s): super().__init__(); s.e=C1(1,14,8,stride=4,bias=False); s.m=C1(14,28,1); s.d=T1(14,1,8,stride=4,bias=False)
    def forward(s,x):
        e=F.relu(s.e(x)); m=s.m(F.layer_norm(e.mT,(14,)).mT).view(x.shape[0],2,14,-1).softmax(1); y=e[:,None]*m; return s.d(y.flatten(0,1)).view(x.shape[0],2,-1)
add("vd_tasmask","block",lambda:(TasMask(),(R(3,1,84,requires_grad=True),)),True)
class Mel(nn.Module):
    def __init__(s): super().__init__(); n=32; t=torch.arange(n)/n; f=torch.arange(17.)[:,None]; w=.5-.5*torch.cos(2*math.pi*t); s.register_buffer("k",torch.cat([torch.cos(2*math.pi*f*t)*w,-torch.sin(2*math.pi*f*t)*w])[:,None]); s.register_buffer("fb",torch.rand(11,17)**3)
    def forward(s,x):
        z=F.conv1d(F.pad(x[:,None],(16,16),mode="reflect"),s.k,stride=12); re,im=z.chunk(2,1); p=re*re+im*im; m=torch.matmul(s.fb,p).clamp(min=1e-5).log10(); m=torch.maximum(m,m.amax((1,2),keepdim=True)-8); return (m+4)/4
add("vd_logmel","conv",lambda:(Mel(),(R(3,216,requires_grad=True),)),True)
add("vd_logmel_f","conv",lambda:(Mel(),(R(2,300),)))
# ---- batch 2: losses with conv fronts, attention gates
def gk(n,s): t=torch.arange(n)-(n-1)/2; g=torch.exp(-t*t/(2*s*s)); return g/g.sum()
class SSIM(nn.Module):
    def __init__(s,c,n=7,half=False): super().__init__(); g=gk(n,1.5); s.register_buffer("k",(g[:,None]*g)[None,None].repeat(c,1,1,1)); s.c=c
    def forward(s,x,y):
        f=lambda t: F.conv2d(t,s.k,groups=s.c); a,b=f(x),f(y); va=f(x*x)-a*a; vb=f(y*y)-b*b; cv=f(x*y)-a*b
        cs=(2*cv+.03**2)/(va+vb+.03**2); l=(2*a*b+.01**2)/(a*a+b*b+.01**2); return 1-(cs*l).mean((1,2,3)), F.relu(cs).mean()
add("vd_ssim","loss",lambda:(SSIM(3),(torch.rand(2,3,19,23).requires_grad_(),torch.rand(2,3,19,23).requires_grad_())),True)
class SSIM1(nn.Module):
    def __init__(s): super().__init__(); s.register_buffer("k",gk(9,2.)[None,None])
    def forward(s,x,y):
        st=torch.stack([x,y,x*x,y*y,x*y],1).flatten(0,1)[:,None]; m=F.conv1d(st,s.k).view(x.shape[0],5,-1); a,b,aa,bb,ab=m.unbind(1)
        return ((2*a*b+1e-4)*(2*(ab-a*b)+9e-4)/((a*a+b*b+1e-4)*(aa-a*a+bb-b*b+9e-4))).mean()
add("vd_ssim1","loss",lambda:(SSIM1(),(torch.rand(5,103).requires_grad_(),torch.rand(5,103).requires_grad_())),True)
fn("vd_ssim_avg3","loss",lambda x,y:(lambda p:(lambda a,b:torch.clamp((1-((2*a*b+1e-4)*(2*(p(x*y)-a*b)+9e-4))/((a*a+b*b+1e-4)*(p(x*x)-a*a+p(y*y)-b*b+9e-4)))/2,0,1).mean(1,keepdim=True)*.85+(x-y).abs().mean(1,keepdim=True)*.15)(p(x),p(y)))(lambda t:F.avg_pool2d(F.pad(t,(1,1,1,1),mode="reflect"),3,1)),ru(2,3,17,20),ru(2,3,17,20),train=True)
fn("vd_tv_aniso3","loss",lambda c,x:(lambda y:((y[:,:,1:,:-1,:-1]-y[:,:,:-1,:-1,:-1])**2+(y[:,:,:-1,1:,:-1]-y[:,:,:-1,:-1,:-1])**2+(y[:,:,:-1,:-1,1:]-y[:,:,:-1,:-1,:-1])**2+1e-8).sqrt().mean())(torch.sigmoid(c(x))),(2,3,5,9,8),layers=lambda:(C3(3,4,3,padding=1),),train=True)
fn("vd_tv2_weighted","loss",lambda x,g:((x[...,2:]-2*x[...,1:-1]+x[...,:-2]).abs()*torch.exp(-10*(g[...,2:]-g[...,:-2]).abs().mean(1,keepdim=True))).mean()+((x[:,:,2:]-2*x[:,:,1:-1]+x[:,:,:-2]).abs()*torch.exp(-10*(g[:,:,2:]-g[:,:,:-2]).abs().mean(1,keepdim=True))).mean(),(2,1,19,22),(2,3,19,22),train=True)
class Percep(nn.Module):
    def __init__(s): super().__init__(); s.a=C2(3,7,3,padding=1); s.b=C2(7,10,3,stride=2,padding=1); s.l1=P(1,7,1,1); s.l2=P(1,10,1,1); s.register_buffer("m",torch.tensor([.485,.456,.406]).view(3,1,1)); s.register_buffer("s",torch.tensor([.229,.224,.225]).view(3,1,1))
    def forward(s,x,y):
        z=(torch.cat([x,y])-s.m)/s.s; f1=F.relu(s.a(z)); f2=F.relu(s.b(f1)); o=0
        for f,w in((f1,s.l1),(f2,s.l2)):
            f=f*torch.rsqrt(f.square().sum(1,keepdim=True)+1e-10); p,q=f.chunk(2); o=o+((p-q)**2*w).sum(1).mean((1,2))
        return o
add("vd_lpips","loss",lambda:(Percep(),(torch.rand(2,3,15,14).requires_grad_(),torch.rand(2,3,15,14).requires_grad_())),True)
class Style(nn.Module):
    def __init__(s): super().__init__(); s.a=C2(3,9,(3,5),padding=(1,2),padding_mode="reflect")
    def forward(s,x,y):
        def gram(t): b,c,h,w=t.shape; f=t.flatten(2); return f@f.mT/(c*h*w)
        a,b=F.relu(s.a(x)),F.relu(s.a(y)); return F.mse_loss(gram(a),gram(b))*1e3+F.smooth_l1_loss(a.mean((2,3)),b.mean((2,3)),beta=.5)
add("vd_gram_style","loss",lambda:(Style(),(R(2,3,13,16,requires_grad=True),R(2,3,13,16,requires_grad=True))),True)
fn("vd_dice_focal3","loss",lambda c,x,t:(lambda lg:(lambda p,o:(1-(2*(p*o).sum((2,3,4))+1e-5)/((p*p).sum((2,3,4))+o.sum((2,3,4))+1e-5))[:,1:].mean()+(-(1-p)**2*o*torch.log_softmax(lg,1)).sum(1).mean())(torch.softmax(lg,1),F.one_hot(t,4).movedim(-1,1).float()))(c(x)),(2,5,4,7,6),ri(4,2,4,7,6),layers=lambda:(C3(5,4,3,padding=1),),train=True)
fn("vd_tversky_focal","loss",lambda c,x,m:(lambda p,t:((1-((p*t).sum((1,2,3))+1.)/((p*t).sum((1,2,3))+.3*(p*(1-t)).sum((1,2,3))+.7*((1-p)*t).sum((1,2,3))+1.)).pow(4/3)).mean())(torch.sigmoid(c(x)),m.float()),(3,6,14,13),rb(.3,3,1,14,13),layers=lambda:(C2(6,1,(5,3),padding=(2,1)),),train=True)
fn("vd_charb_edge","loss",lambda k,x,y:(lambda e:((x-y)**2+1e-6).sqrt().mean()+.05*((e(x)-e(y))**2+1e-6).sqrt().mean())(lambda t:t-F.conv2d(F.pad(F.pad(F.conv2d(F.pad(t,(2,2,2,2),mode="replicate"),k.t,groups=3)[:,:,::2,::2].repeat_interleave(2,2).repeat_interleave(2,3)*4,(0,0,0,0)),(2,2,2,2),mode="replicate"),k.t,groups=3)),(2,3,16,20),(2,3,16,20),layers=lambda:(K((gk(5,1.)[:,None]*gk(5,1.))[None,None].repeat(3,1,1,1)),),train=True)
fn("vd_bce_boundary","loss",lambda c,x,m:(lambda z,t:(F.binary_cross_entropy_with_logits(z,t,reduction="none")*(1+5*(F.avg_pool2d(t,7,1,3)-t).abs())).sum((2,3))/(1+5*(F.avg_pool2d(t,7,1,3)-t).abs()).sum((2,3)))(c(F.relu(x)),m.float()),(2,7,15,18),rb(.5,2,2,15,18),layers=lambda:(C2(7,2,1),),train=True)
fn("vd_wiou","loss",lambda c,x,t:(lambda p:1-((p*t).sum((2,3))+1)/((p+t-p*t).sum((2,3))+1))(c(x).sigmoid()),(2,5,13,17),ru(2,3,13,17),layers=lambda:(T2(5,3,3,padding=1),),train=True)
fn("vd_lovasz_like_erode","loss",lambda x:(lambda s:F.relu(s-F.max_pool2d(-F.max_pool2d(-s,3,1,1),3,1,1)))(torch.sigmoid(x)).mean(1)*(-F.max_pool2d(-x.sigmoid(),(3,1),1,(1,0))).sum(1),(2,4,15,14),train=True)
class ClDice(nn.Module):
    def __init__(s): super().__init__(); s.c=C3(3,2,3,padding=1)
    def sk(s,p):
        er=lambda t:-F.max_pool3d(-t,3,1,1); op=lambda t:F.max_pool3d(er(t),3,1,1); k=F.relu(p-op(p)); p=er(p); d=F.relu(p-op(p)); return k+F.relu(d-k*d)
    def forward(s,x,t):
        p=s.c(x).softmax(1)[:,1:]; a,b=s.sk(p),s.sk(t); tp=((a*t).sum()+1)/(a.sum()+1); ts=((b*p).sum()+1)/(b.sum()+1); return 1-2*tp*ts/(tp+ts)
add("vd_cldice3","loss",lambda:(ClDice(),(R(2,3,5,7,9,requires_grad=True),(torch.rand(2,1,5,7,9)).requires_grad_())),True)
class AttGate(nn.Module):
    def __init__(s,cx,cg,m): super().__init__(); s.x=C2(cx,m,2,stride=2,bias=False); s.g=C2(cg,m,1); s.p=C2(m,1,1); s.o=C2(cx,cx,1); s.n=nn.BatchNorm2d(cx)
    def forward(s,x,g):
        a=torch.sigmoid(s.p(F.relu(s.x(x)+s.g(g)))); a=F.interpolate(a,size=x.shape[2:],mode="bilinear",align_corners=True); return s.n(s.o(x*a)), a
add("vd_attgate","block",lambda:(AttGate(7,10,5),(R(2,7,12,14,requires_grad=True),R(2,10,6,7,requires_grad=True))),True)
class AttGate3(nn.Module):
    def __init__(s,cx,cg,m): super().__init__(); s.x=C3(cx,m,(1,2,2),stride=(1,2,2)); s.g=C3(cg,m,1); s.p=C3(m,1,1)
    def forward(s,x,g):
        a=torch.sigmoid(s.p(F.elu(s.x(x)+s.g(g)))); return x*a.repeat_interleave(2,3).repeat_interleave(2,4)+x.mean((2,3,4),keepdim=True)
add("vd_attgate3","block",lambda:(AttGate3(5,6,4),(R(2,5,3,8,6,requires_grad=True),R(2,6,3,4,3,requires_grad=True))),True)
class CBAM(nn.Module):
    def __init__(s,c,k=7): super().__init__(); s.a=C2(c,3,1,bias=False); s.b=C2(3,c,1,bias=False); s.s=C2(2,1,k,padding=k//2,bias=False); s.d=C2(c,c,3,padding=1); s.n=nn.BatchNorm2d(c)
    def forward(s,x):
        y=s.n(s.d(x)); f=lambda t:s.b(F.relu(s.a(t))); y=y*torch.sigmoid(f(F.adaptive_avg_pool2d(y,1))+f(F.adaptive_max_pool2d(y,1)))
        m=torch.cat([y.amax(1,keepdim=True),y.mean(1,keepdim=True)],1); return F.relu(y*torch.sigmoid(s.s(m))+x)
add("vd_cbam_res","block",lambda:(CBAM(9),(R(2,9,11,13,requires_grad=True),)),True)
class CBAM3(nn.Module):
    def __init__(s,c): super().__init__(); s.c=C3(c,c,(3,1,3),padding=(1,0,1)); s.l=nn.Linear(c,c); s.s=C3(3,1,3,padding=1)
    def forward(s,x):
        y=F.silu(s.c(x)); g=torch.sigmoid(s.l(y.mean((2,3,4)))+s.l(y.amax((2,3,4)))); y=y*g[:,:,None,None,None]; return y*s.s(torch.stack([y.amax(1),y.mean(1),y.std(1)],1)).sigmoid()-x
add("vd_cbam3","block",lambda:(CBAM3(6),(R(2,6,4,7,5,requires_grad=True),)),True)
class CoordAtt(nn.Module):
    def __init__(s,c,m): super().__init__(); s.a=C2(c,m,1); s.n=nn.BatchNorm2d(m); s.h=C2(m,c,1); s.w=C2(m,c,1)
    def forward(s,x):
        h,w=x.shape[2:]; y=torch.cat([x.mean(3,keepdim=True),x.mean(2,keepdim=True).transpose(2,3)],2); y=s.n(s.a(y)); y=y*F.relu6(y+3)/6; a,b=y.split([h,w],2)
        return x*s.h(a).sigmoid()*s.w(b.transpose(2,3)).sigmoid()
add("vd_coordatt","block",lambda:(CoordAtt(10,6),(R(2,10,9,13,requires_grad=True),)),True)
class ECA(nn.Module):
    def __init__(s,c): super().__init__(); s.d=C2(c,c,3,padding=1,groups=c//2); s.k=C1(1,1,5,padding=2,bias=False)
    def forward(s,x): y=F.hardswish(s.d(x)); g=s.k(y.mean((2,3))[:,None]).squeeze(1); return y*torch.sigmoid(g)[...,None,None].expand_as(y)+x.flip(3)
add("vd_eca_flip","block",lambda:(ECA(12),(R(2,12,10,7,requires_grad=True),)),True)
class SimAM(nn.Module):
    def __init__(s): super().__init__(); s.c=C2(6,8,3,padding=1)
    def forward(s,x): y=s.c(x); n=y.shape[2]*y.shape[3]-1; d=(y-y.mean((2,3),keepdim=True)).pow(2); return y*torch.sigmoid(d/(4*(d.sum((2,3),keepdim=True)/n+1e-4))+.5)
add("vd_simam","conv",lambda:(SimAM(),(R(2,6,12,11,requires_grad=True),)),True)
class SKNet(nn.Module):
    def __init__(s,c): super().__init__(); s.a=C2(c,c,3,padding=1,groups=2,bias=False); s.b=C2(c,c,3,padding=2,dilation=2,groups=2,bias=False); s.f=nn.Linear(c,5); s.g=nn.Linear(5,2*c)
    def forward(s,x):
        u=torch.stack([F.relu(s.a(x)),F.relu(s.b(x))],1); z=u.sum(1).mean((2,3)); w=s.g(F.relu(s.f(z))).view(x.shape[0],2,-1).softmax(1); return (u*w[...,None,None]).sum(1)
add("vd_sknet","block",lambda:(SKNet(8),(R(2,8,11,10,requires_grad=True),)),True)
class TripletAtt(nn.Module):
    def __init__(s): super().__init__(); s.c=nn.ModuleList([C2(2,1,(3,5),padding=(1,2),bias=False) for _ in range(3)]); s.n=nn.ModuleList([nn.BatchNorm2d(1) for _ in range(3)])
    def forward(s,x):
        o=0
        for i,p in enumerate([(0,1,2,3),(0,2,1,3),(0,3,2,1)]):
            t=x.permute(p); g=torch.sigmoid(s.n[i](s.c[i](torch.cat([t.amax(1,True),t.mean(1,True)],1)))); o=o+(t*g).permute(p)
        return o/3
add("vd_triplet","block",lambda:(TripletAtt(),(R(2,7,9,11,requires_grad=True),)),True)
class BAM(nn.Module):
    def __init__(s,c): super().__init__(); s.c=nn.Sequential(nn.Linear(c,3),nn.BatchNorm1d(3),nn.ReLU(),nn.Linear(3,c)); s.s=nn.Sequential(C2(c,3,1),nn.BatchNorm2d(3),nn.ReLU(),C2(3,3,3,padding=4,dilation=4),nn.ReLU(),C2(3,1,1))
    def forward(s,x): return x*(1+torch.sigmoid(s.c(x.mean((2,3)))[:,:,None,None]*s.s(x)))
add("vd_bam","block",lambda:(BAM(8),(R(4,8,10,12,requires_grad=True),)),True)
class CondInst(nn.Module):
    def __init__(s): super().__init__(); s.c=C2(5,6,3,padding=1)
    def forward(s,x,ctl):
        n,_,h,w=x.shape; y=s.c(x); gy=torch.linspace(-1,1,h).view(1,1,h,1).expand(n,1,h,w); gx=torch.linspace(-1,1,w).view(1,1,1,w).expand(n,1,h,w); y=torch.cat([y,gx,gy],1)
        w1,b1,w2,b2=ctl.split([32,4,4,1],1); y=F.relu(torch.einsum("nchw,noc->nohw",y,w1.view(n,4,8))+b1[...,None,None]); return torch.sigmoid((y*w2[...,None,None]).sum(1)+b2[...,None])
add("vd_condinst","block",lambda:(CondInst(),(R(3,5,9,14,requires_grad=True),R(3,41,requires_grad=True))),True)
class GatedConv(nn.Module):
    def __init__(s): super().__init__(); s.c=C2(5,18,(4,3),stride=(2,1),padding=(1,1)); s.n=nn.InstanceNorm2d(9,affine=True)
    def forward(s,x,m):
        y=s.c(torch.cat([x*(1-m),m],1)); f,g=y[:,::2],y[:,1::2]; return s.n(F.elu(f)*torch.sigmoid(g))
add("vd_gatedconv_str","conv",lambda:(GatedConv(),(R(2,4,14,11,requires_grad=True),torch.rand(2,1,14,11).round().requires_grad_())),True)
class Glu3(nn.Module):
    def __init__(s): super().__init__(); s.c=C3(4,15,(1,3,3),stride=(1,2,1),padding=(0,1,1)); s.o=C3(5,4,(3,1,1),padding=(1,0,0))
    def forward(s,x): a,b,c=s.c(x).chunk(3,1); y=torch.tanh(a)*b.sigmoid()+(1-b.sigmoid())*c; return s.o(y)+F.avg_pool3d(x,(1,2,1),ceil_mode=True)
add("vd_glu3","conv",lambda:(Glu3(),(R(2,4,5,9,6,requires_grad=True),)),True)
class ConvLSTM(nn.Module):
    def __init__(s,i,h): super().__init__(); s.c=C2(i+h,4*h,3,padding=1); s.pi=P(h,8,9); s.pf=P(h,8,9); s.po=P(h,8,9)
    def forward(s,x,h,c):
        i,f,g,o=s.c(torch.cat([x,h],1)).chunk(4,1); i=torch.sigmoid(i+s.pi*c); f=torch.sigmoid(f+s.pf*c+1); c2=f*c+i*torch.tanh(g); o=torch.sigmoid(o+s.po*c2); return o*torch.tanh(c2),c2
add("vd_convlstm","block",lambda:(ConvLSTM(4,6),(R(2,4,8,9,requires_grad=True),R(2,6,8,9,requires_grad=True),R(2,6,8,9,requires_grad=True))),True)
class ConvGRU2(nn.Module):
    def __init__(s): super().__init__(); s.z=C2(11,12,(1,5),padding=(0,2)); s.q=C2(11,6,(1,5),padding=(0,2)); s.z2=C2(11,12,(5,1),padding=(2,0)); s.q2=C2(11,6,(5,1),padding=(2,0))
    def forward(s,h,x):
        for zr,q in((s.z,s.q),(s.z2,s.q2)):
            z,r=torch.sigmoid(zr(torch.cat([h,x],1))).split(6,1); h=torch.lerp(h,torch.tanh(q(torch.cat([r*h,x],1))),z)
        return h
add("vd_sepconvgru","block",lambda:(ConvGRU2(),(R(2,6,10,7,requires_grad=True),R(2,5,10,7,requires_grad=True))),True)
class Octave(nn.Module):
    def __init__(s): super().__init__(); s.hh=C2(6,8,3,padding=1); s.hl=C2(6,4,3,padding=1); s.lh=C2(3,8,3,padding=1); s.ll=C2(3,4,3,padding=1)
    def forward(s,h,l): return F.relu(s.hh(h)+F.interpolate(s.lh(l),scale_factor=2,mode="nearest")), F.relu(s.ll(l)+s.hl(F.avg_pool2d(h,2)))
add("vd_octave","block",lambda:(Octave(),(R(2,6,12,14,requires_grad=True),R(2,3,6,7,requires_grad=True))),True)
class ASPP(nn.Module):
    def __init__(s,c,o): super().__init__(); s.b=nn.ModuleList([C2(c,o,3 if d>1 else 1,padding=d if d>1 else 0,dilation=d,bias=False) for d in(1,2,5)]); s.n=nn.ModuleList([nn.BatchNorm2d(o) for _ in range(3)]); s.p=C2(c,o,1); s.o=C2(4*o,o,1)
    def forward(s,x):
        y=[F.relu(n(b(x))) for b,n in zip(s.b,s.n)]+[s.p(x.mean((2,3),keepdim=True)).relu().expand(-1,-1,*x.shape[2:])]; return s.o(torch.cat(y,1)).softmax(1)
add("vd_aspp","block",lambda:(ASPP(6,5),(R(2,6,13,12,requires_grad=True),)),True)
class PSP(nn.Module):
    def __init__(s,c): super().__init__(); s.a=C2(c,3,1); s.b=C2(c,3,1); s.o=C2(c+6,c,3,padding=1)
    def forward(s,x):
        h,w=x.shape[2:]; u=lambda t:F.interpolate(t,size=(h,w),mode="bilinear",align_corners=False); return F.relu(s.o(torch.cat([x,u(F.relu(s.a(F.adaptive_avg_pool2d(x,2)))),u(F.relu(s.b(F.adaptive_avg_pool2d(x,3))))],1)))+x
add("vd_psp","block",lambda:(PSP(7),(R(2,7,12,18,requires_grad=True),)),True)
class Res2(nn.Module):
    def __init__(s): super().__init__(); s.i=C2(12,12,1); s.c=nn.ModuleList([C2(3,3,3,padding=1) for _ in range(3)]); s.n=nn.BatchNorm2d(12)
    def forward(s,x):
        a=s.i(x).relu().chunk(4,1); o=[a[0]]; y=0
        for k,c in enumerate(s.c): y=F.relu(c(a[k+1]+y)); o.append(y)
        return F.relu(s.n(torch.cat(o,1))+x)
add("vd_res2net","block",lambda:(Res2(),(R(2,12,9,10,requires_grad=True),)),True)
# ---- batch 3: half types, odd tails, 1D / 3D
def H(make,dt=torch.bfloat16):
    def mk():
        m,xs=make(); return m.to(dt),tuple(x.detach().to(dt).requires_grad_(x.requires_grad) if x.is_floating_point() else x for x in xs)
    return mk
BF,HF=torch.bfloat16,torch.float16
add("vd_grn_bf","block",H(lambda:(GRNBlock(6),(R(2,6,9,14,requires_grad=True),))),True)
add("vd_modulated_h","conv",H(lambda:(ModConv(5,8,7),(R(2,5,9,12,requires_grad=True),R(2,7,requires_grad=True),R(2,1,9,12,requires_grad=True))),HF),True)
add("vd_cbam3_bf","block",H(lambda:(CBAM3(5),(R(2,5,3,8,7,requires_grad=True),))),True)
add("vd_convlstm_h","block",H(lambda:(ConvLSTM(3,5),(R(2,3,8,9,requires_grad=True),R(2,5,8,9,requires_grad=True),R(2,5,8,9,requires_grad=True))),HF),True)
fn("vd_glu3_bf","conv",lambda c,o,x:(lambda a,b,d:o(torch.tanh(a)*b.sigmoid()+(1-b.sigmoid())*d)+x[:,:,:,::2])(*c(x).chunk(3,1)),rh(2,4,4,7,8),layers=lambda:(C3(4,15,(1,3,3),stride=(1,2,1),padding=(0,1,1)).bfloat16(),C3(5,4,(3,1,1),padding=(1,0,0)).bfloat16()),train=True)
add("vd_wave_bf","block",H(lambda:(Wave(7,2,6),(R(3,7,53,requires_grad=True),R(3,6,53,requires_grad=True)))),True)
add("vd_mrf_h","block",H(lambda:(MRF(5),(R(2,8,19,requires_grad=True),)),HF),True)
class UpF32(nn.Module):
    """half convolution, float32 statistics, back to half"""
    def __init__(s,dt): super().__init__(); s.c=C2(6,10,3,padding=1).to(dt); s.w=P(10,scale=1); s.b=P(10); s.dt=dt
    def forward(s,x):
        y=s.c(x).float(); v=y.var(1,unbiased=False,keepdim=True); y=(y-y.mean(1,keepdim=True))*torch.rsqrt(v+1e-6)*s.w[None,:,None,None]+s.b[None,:,None,None]; return F.silu(y).to(s.dt), y.abs().amax((2,3))
add("vd_mixed_ln_bf","conv",lambda:(UpF32(BF),(R(2,6,11,13).bfloat16().requires_grad_(),)),True)
add("vd_mixed_ln_h","conv",lambda:(UpF32(HF),(R(2,6,9,14).half().requires_grad_(),)),True)
class QK(nn.Module):
    def __init__(s,dt): super().__init__(); s.c=C2(9,27,3,padding=1,groups=3).to(dt); s.t=nn.Parameter(torch.ones(3,1,1)); s.o=C2(9,9,1).to(dt)
    def forward(s,x):
        b,c,h,w=x.shape; q,k,v=s.c(x).view(b,3,9,h*w).permute(2,0,1,3).reshape(3,3,b,3,h*w).permute(0,2,1,3,4).unbind(0)
        q=F.normalize(q.float(),dim=-1); k=F.normalize(k.float(),dim=-1); a=((q@k.mT)*s.t).softmax(-1).to(x.dtype); return s.o((a@v).reshape(b,9,h,w))+x
add("vd_restormer_bf","block",lambda:(QK(BF),(R(2,9,8,11).bfloat16().requires_grad_(),)),True)
add("vd_restormer","block",lambda:(QK(torch.float32),(R(2,9,7,10,requires_grad=True),)),True)
class NAF(nn.Module):
    def __init__(s,c): super().__init__(); s.n=LN2(c); s.a=C2(c,2*c,1); s.d=C2(2*c,2*c,3,padding=1,groups=2*c); s.s=C2(c,c,1); s.b=C2(c,c,1); s.n2=LN2(c); s.e=C2(c,2*c,1); s.f=C2(c,c,1); s.be=P(1,c,1,1); s.ga=P(1,c,1,1)
    def forward(s,x):
        a,b=s.d(s.a(s.n(x))).chunk(2,1); y=a*b; y=x+s.b(y*s.s(y.mean((2,3),keepdim=True)))*s.be; a,b=s.e(s.n2(y)).chunk(2,1); return y+s.f(a*b)*s.ga
add("vd_naf","block",lambda:(NAF(6),(R(2,6,10,13,requires_grad=True),)),True)
add("vd_naf_h","block",H(lambda:(NAF(5),(R(2,5,11,9,requires_grad=True),)),HF),True)
class LKA(nn.Module):
    def __init__(s,c): super().__init__(); s.p=C2(c,c,1); s.a=C2(c,c,5,padding=2,groups=c); s.b=C2(c,c,(7,5),padding=(9,6),dilation=3,groups=c); s.o=C2(c,c,1); s.g=P(c,scale=.01)
    def forward(s,x): y=F.gelu(s.p(x),approximate="tanh"); return x+torch.einsum("nchw,c->nchw",s.o(s.b(s.a(y))*y)+y,s.g)
add("vd_lka","block",lambda:(LKA(7),(R(2,7,13,9,requires_grad=True),)),True)
class FocalMod(nn.Module):
    def __init__(s,c): super().__init__(); s.f=nn.Linear(c,2*c+3); s.a=C2(c,c,3,padding=1,groups=c,bias=False); s.b=C2(c,c,5,padding=2,groups=c,bias=False); s.h=C2(c,c,1); s.p=nn.Linear(c,c)
    def forward(s,x):
        q,ctx,g=s.f(x).permute(0,3,1,2).split([x.shape[-1],x.shape[-1],3],1); c1=F.gelu(s.a(ctx)); c2=F.gelu(s.b(c1)); m=c1*g[:,:1]+c2*g[:,1:2]+F.gelu(c2.mean((2,3),keepdim=True))*g[:,2:]; return s.p((q*s.h(m)).permute(0,2,3,1))
add("vd_focalmod","block",lambda:(FocalMod(7),(R(2,9,10,7,requires_grad=True),)),True)
add("vd_focalmod_bf","block",H(lambda:(FocalMod(6),(R(2,8,11,6,requires_grad=True),))),True)
class HorConv(nn.Module):
    def __init__(s): super().__init__(); s.i=C2(8,16,1); s.d=C2(14,14,7,padding=3,groups=14); s.p=nn.ModuleList([C2(2,4,1),C2(4,8,1)]); s.o=C2(8,8,1)
    def forward(s,x):
        y,abc=s.i(x).split([2,14],1); dw=s.d(abc)*.333; a,b,c=dw.split([2,4,8],1); z=y*a; z=s.p[0](z)*b; z=s.p[1](z)*c; return s.o(z)+x
add("vd_gnconv","block",lambda:(HorConv(),(R(2,8,9,11,requires_grad=True),)),True)
class Ghost(nn.Module):
    def __init__(s): super().__init__(); s.a=C2(6,9,1,bias=False); s.n=nn.BatchNorm2d(9); s.d=C2(9,9,3,padding=1,groups=9,bias=False); s.m=nn.BatchNorm2d(9); s.g=C2(6,16,(1,5),padding=(0,2))
    def forward(s,x):
        p=F.relu(s.n(s.a(x))); y=torch.cat([p,F.relu(s.m(s.d(p)))],1)[:,:16]; return y*F.interpolate(torch.sigmoid(s.g(F.avg_pool2d(x,2))),size=y.shape[2:],mode="nearest")
add("vd_ghostv2","block",lambda:(Ghost(),(R(2,6,10,14,requires_grad=True),)),True)
class RepVGG(nn.Module):
    def __init__(s,c): super().__init__(); s.a=C2(c,c,3,padding=1,bias=False); s.b=C2(c,c,1,bias=False); s.na=nn.BatchNorm2d(c); s.nb=nn.BatchNorm2d(c); s.ni=nn.BatchNorm2d(c)
    def forward(s,x): return F.gelu(s.na(s.a(x))+s.nb(s.b(x))+s.ni(x))
add("vd_repvgg","block",lambda:(RepVGG(7),(R(3,7,8,11,requires_grad=True),)),True)
class CSP(nn.Module):
    def __init__(s): super().__init__(); s.a=C2(7,10,1,bias=False); s.n=nn.BatchNorm2d(10,eps=1e-3,momentum=.03); s.m=C2(5,5,3,padding=1,bias=False); s.nm=nn.BatchNorm2d(5); s.o=C2(15,6,1)
    def forward(s,x): a,b=F.silu(s.n(s.a(x))).chunk(2,1); return F.silu(s.o(torch.cat([a,b,b+F.silu(s.nm(s.m(b)))],1)))
add("vd_c2f","block",lambda:(CSP(),(R(2,7,11,12,requires_grad=True),)),True)
class SPPF(nn.Module):
    def __init__(s): super().__init__(); s.a=C2(8,5,1); s.o=C2(20,9,1)
    def forward(s,x): x=F.mish(s.a(x)); p=F.max_pool2d(x,5,1,2); q=F.max_pool2d(p,5,1,2); r=F.max_pool2d(q,5,1,2); return F.mish(s.o(torch.cat([x,p,q,r],1)))
add("vd_sppf","block",lambda:(SPPF(),(R(2,8,13,12,requires_grad=True),)),True)
class YoloHead(nn.Module):
    def __init__(s): super().__init__(); s.c=C2(6,3*9,1); s.register_buffer("an",torch.tensor([[1.2,2.],[2.5,3.7],[4.1,3.3]]))
    def forward(s,x):
        b,_,h,w=x.shape; y=s.c(x).view(b,3,9,h,w).permute(0,1,3,4,2); gy,gx=torch.meshgrid(torch.arange(h),torch.arange(w),indexing="ij"); g=torch.stack([gx,gy],-1).to(y.dtype); t=y.sigmoid()
        xy=(t[...,:2]*2-.5+g)*8; wh=(t[...,2:4]*2)**2*s.an.view(1,3,1,1,2); return torch.cat([xy-wh/2,xy+wh/2,t[...,4:5]*t[...,5:]],-1).view(b,-1,8)
add("vd_yolohead","conv",lambda:(YoloHead(),(R(2,6,8,11,requires_grad=True),)),True)
class DFL(nn.Module):
    def __init__(s): super().__init__(); s.b=C2(7,4*6,3,padding=1); s.k=C2(7,5,1)
    def forward(s,x):
        b,_,h,w=x.shape; d=(s.b(x).view(b,4,6,h*w).softmax(2)*torch.arange(6.)[:,None]).sum(2); lt,rb=d.chunk(2,1); ay=torch.arange(h).float()[:,None].expand(h,w)+.5; ax=torch.arange(w).float().expand(h,w)+.5; a=torch.stack([ax,ay]).view(1,2,-1)
        x1,x2=a-lt,a+rb; return torch.cat([(x1+x2)/2,x2-x1],1)*4., s.k(x).sigmoid().flatten(2).amax(1)
add("vd_dfl","conv",lambda:(DFL(),(R(2,7,6,9,requires_grad=True),)),True)
fn("vd_centernet_peak","conv",lambda c,x:(lambda h:(h*(F.max_pool2d(h,3,1,1)==h).to(h.dtype)).flatten(2).amax(2))(torch.clamp(c(x).sigmoid(),1e-4,1-1e-4)),(2,6,14,15),layers=lambda:(C2(6,5,3,padding=1),))
fn("vd_centernet_loss","loss",lambda c,x,g:(lambda p,pos:-((1-p)**2*p.log()*pos+(1-g)**4*p**2*(1-p).log()*(1-pos)).sum()/pos.sum().clamp(min=1))(torch.clamp(torch.sigmoid(c(x)),1e-4,1-1e-4),(g>.9).float()),(2,6,13,12),ru(2,4,13,12),layers=lambda:(C2(6,4,1),),train=True)
fn("vd_softargmax_heat","conv",lambda c,x:(lambda p:torch.stack([(p.sum(2)*torch.linspace(0,1,p.shape[3])).sum(2),(p.sum(3)*torch.linspace(0,1,p.shape[2])).sum(2)],-1))((lambda h:torch.softmax(h.flatten(2)*10,-1).view_as(h))(c(x))),(2,5,12,15),layers=lambda:(C2(5,4,3,padding=1),),train=True)
fn("vd_spatial_soft_var","conv",lambda c,x:(lambda p:(lambda m:((torch.linspace(-1,1,19)-m[...,None])**2*p).sum(-1).sqrt()+m)((p*torch.linspace(-1,1,19)).sum(-1)))(c(x).softmax(2).mean(2)),(3,4,8,19),layers=lambda:(T2(4,5,(1,3),padding=(0,1)),),train=True)
fn("vd_conv1_circ_rms","conv",lambda c,g,x:(lambda y:y*torch.rsqrt(y.pow(2).mean(1,keepdim=True)+1e-6)*g[:,None]+x.roll(2,-1))(c(x)),(3,11,45),layers=lambda:(C1(11,11,5,padding=2,padding_mode="circular"),P(11,scale=1)),train=True)
fn("vd_conv1_tr_outpad","conv",lambda c,x,m:(lambda y:torch.where(m,y,y.new_full((),-1e4)).logsumexp(2)-y.masked_fill(~m,0.).sum(2)/m.sum(2).clamp(min=1))(c(x)),(3,8,17),rb(.7,3,1,52),layers=lambda:(T1(8,12,4,stride=3,padding=1,output_padding=2,groups=4),),train=True)
fn("vd_conv1_dil_bf","conv",lambda c,x:(lambda y:(y[:,:5]*torch.tanh(F.softplus(y[:,5:10])))+y[:,10:]*2.5-x[:,:5].float().cumsum(1).to(y.dtype)*0.01)(c(x)),rh(2,7,50),layers=lambda:(C1(7,15,3,padding=4,dilation=4).bfloat16(),),train=True)
fn("vd_conv3_asym_h","conv",lambda c,x:(lambda y:(y.amax((3,4))-y.mean((3,4))).exp2().clamp(max=8).unsqueeze(-1)*y[:,:,:,0])(c(x)),rf(2,4,5,8,6),layers=lambda:(C3(4,9,(1,3,2),stride=(1,2,1),padding=(0,0,1),dilation=(1,1,2)).half(),),train=True)
fn("vd_tr3_group_tail","conv",lambda c,b,x:(lambda y:F.hardtanh(F.max_pool3d(F.avg_pool3d(y+b,(1,2,2)),(2,1,2),stride=1)*y.shape[1]**-.5,-.4,.6).sum(1))(c(x)),(2,6,3,5,4),layers=lambda:(T3(6,8,(2,3,4),stride=(2,1,2),padding=(0,1,1),groups=2),P(8,1,1,1)),train=True)
fn("vd_two_pool3","conv",lambda c,x:(lambda y:F.max_pool3d(F.max_pool3d(y,2,stride=(1,2,2)),(1,3,3),stride=1,padding=(0,1,1)).sum((1,),keepdim=True).sub(1.25).erf())(F.logsigmoid(c(x))),(2,3,5,10,9),layers=lambda:(C3(3,7,3),),train=True)
fn("vd_lp_pool","conv",lambda c,x:F.lp_pool2d(F.softplus(c(x)),3.,2)-F.avg_pool2d(x,2).mean(1,keepdim=True),(2,5,12,14),layers=lambda:(C2(5,8,3,padding=1),),train=True)
fn("vd_gem","conv",lambda c,p,x:(lambda y:F.avg_pool2d(y.clamp(min=1e-6).pow(p.exp()),y.shape[2:]).pow(1/p.exp()).flatten(1))(c(x)),(3,6,11,9),layers=lambda:(C2(6,10,3),nn.Parameter(torch.tensor([1.1]))),train=True)
fn("vd_stochpool_eval","conv",lambda c,x:(lambda y:(lambda a:F.avg_pool2d(a*a,3,2,1)/(F.avg_pool2d(a,3,2,1)+1e-5))(F.relu(y)+1e-4))(c(x)),(2,6,15,13),layers=lambda:(C2(6,7,(1,3),padding=(0,1)),),train=True)
fn("vd_softpool1","conv",lambda c,x:(lambda y:(lambda e:F.avg_pool1d(e*y,3,2,1)/F.avg_pool1d(e,3,2,1))(torch.exp(y-y.amax((1,2),keepdim=True))))(c(x)),(2,9,43),layers=lambda:(C1(9,12,3,padding=1,groups=3),),train=True)
fn("vd_maxout4","conv",lambda c,x:(lambda y:y.view(2,5,4,*y.shape[2:]).amax(2)-y.view(2,5,4,*y.shape[2:]).amin(2)*.2)(c(x)),(2,7,10,11),layers=lambda:(C2(7,20,3,padding=1,bias=False),),train=True)
fn("vd_crelu_nms","conv",lambda b,c,x:(lambda y:b(torch.cat([y,-y],1)).relu()*(F.max_pool2d(y,3,1,1)==y).repeat(1,2,1,1))(c(x)),(2,6,12,9),layers=lambda:(nn.BatchNorm2d(14),C2(6,7,3,padding=1)),train=True)
fn("vd_concat_coord_polar","conv",lambda c,x:(lambda gy,gx:F.gelu(c(torch.cat([x,(gy*gy+gx*gx).sqrt().expand(x.shape[0],1,-1,-1),torch.atan2(gy,gx+.01).expand(x.shape[0],1,-1,-1)],1)))+gy*gx)(torch.linspace(-1,1,10)[:,None],torch.linspace(-1,1,13)[None]),(2,5,10,13),layers=lambda:(C2(7,6,3,padding=1),),train=True)
# ---- batch 4: video, audio, flow, restoration; half; multi outputs
class TDN(nn.Module):
    """temporal differences"""
    def __init__(s,c,T): super().__init__(); s.T=T; s.r=C2(c,4,1); s.d=C2(4,4,3,padding=1,groups=4); s.e=C2(4,c,1); s.o=C2(c,c,3,padding=1)
    def forward(s,x):
        n,c,h,w=x.shape; y=s.r(x); d=s.d(y).view(n//s.T,s.T,4,h,w)[:,1:]-y.view(n//s.T,s.T,4,h,w)[:,:-1]; d=F.pad(d,(0,0,0,0,0,0,0,1)).flatten(0,1); g=torch.sigmoid(s.e(d.mean((2,3),keepdim=True)))-.5; return s.o(x+x*g)
add("vd_tea_me","block",lambda:(TDN(7,3),(R(6,7,9,8,requires_grad=True),)),True)
add("vd_tea_me_h","block",H(lambda:(TDN(6,4),(R(8,6,7,9,requires_grad=True),)),HF),True)
class GSM(nn.Module):
    """gate shift module"""
    def __init__(s,c): super().__init__(); s.n=nn.BatchNorm3d(c); s.c=C3(c,2,3,padding=1,groups=2)
    def forward(s,x):
        g=torch.tanh(s.c(F.relu(s.n(x)))); a,b=x.chunk(2,1); ga,gb=g[:,:1],g[:,1:]; ya,yb=ga*a,gb*b; ra,rb=a-ya,b-yb
        ya=torch.cat([ya[:,:,1:],torch.zeros_like(ya[:,:,:1])],2)+ra; yb=torch.cat([torch.zeros_like(yb[:,:,:1]),yb[:,:,:-1]],2)+rb; return torch.stack([ya,yb],2).flatten(1,2)
add("vd_gsm","block",lambda:(GSM(8),(R(2,8,5,7,6,requires_grad=True),)),True)
class X3D(nn.Module):
    def __init__(s,i,m): super().__init__(); s.a=C3(i,m,1,bias=False); s.na=nn.BatchNorm3d(m); s.d=C3(m,m,3,stride=(1,2,2),padding=1,groups=m,bias=False); s.nd=nn.BatchNorm3d(m); s.q=C3(m,4,1); s.e=C3(4,m,1); s.b=C3(m,i+2,1,bias=False); s.sk=C3(i,i+2,1,stride=(1,2,2),bias=False)
    def forward(s,x):
        y=F.relu(s.na(s.a(x))); y=s.nd(s.d(y)); y=y*torch.sigmoid(s.e(F.relu(s.q(y.mean((2,3,4),keepdim=True))))); return F.relu(s.b(F.silu(y))+s.sk(x))
add("vd_x3d","block",lambda:(X3D(5,9),(R(2,5,3,8,9,requires_grad=True),)),True)
class I3DHead(nn.Module):
    def __init__(s): super().__init__(); s.c=C3(6,11,1); s.b=P(11)
    def forward(s,x,t):
        y=s.c(F.avg_pool3d(x,(2,4,4),stride=1)).squeeze(-1).squeeze(-1); l=y.amax(2)+s.b; return F.cross_entropy(l,t,label_smoothing=.1), torch.log_softmax(y,1).mean(2)
add("vd_i3dhead","loss",lambda:(I3DHead(),(R(3,6,5,4,4,requires_grad=True),torch.randint(0,11,(3,)))),True)
class ActShift(nn.Module):
    """learnable fractional temporal shift"""
    def __init__(s,c): super().__init__(); s.th=P(c,scale=.5); s.c=C3(c,c+1,(1,3,1),padding=(0,1,0))
    def forward(s,x):
        f=torch.tanh(s.th).view(1,-1,1,1,1); p=F.pad(x,(0,0,0,0,1,1)); y=F.relu(1-(f+1).abs())*p[:,:,:-2]+(1-f.abs())*p[:,:,1:-1]+F.relu(1-(f-1).abs())*p[:,:,2:]; return F.leaky_relu(s.c(y),.2).norm(dim=1)
add("vd_fracshift","block",lambda:(ActShift(6),(R(2,6,5,8,7,requires_grad=True),)),True)
class ConvexUp(nn.Module):
    """RAFT convex upsampling"""
    def __init__(s): super().__init__(); s.m=C2(7,4*9,1)
    def forward(s,fl,h):
        n,_,H_,W=fl.shape; m=(s.m(F.relu(h))*.25).view(n,1,9,2,2,H_,W).softmax(2); u=F.unfold(2*fl,3,padding=1).view(n,2,9,1,1,H_,W); return (m*u).sum(2).permute(0,1,4,2,5,3).reshape(n,2,2*H_,2*W)
add("vd_convexup","block",lambda:(ConvexUp(),(R(2,2,7,9,requires_grad=True),R(2,7,7,9,requires_grad=True))),True)
class CorrPyr(nn.Module):
    def __init__(s): super().__init__(); s.f=C2(5,8,3,stride=2,padding=1); s.o=C2(12,6,1)
    def forward(s,a,b):
        fa,fb=s.f(torch.cat([a,b])).chunk(2); n,c,h,w=fa.shape; co=(fa.flatten(2).mT@fb.flatten(2)/math.sqrt(c)).view(n*h*w,1,h,w); p=F.avg_pool2d(co,2); return s.o(torch.cat([fa,co.amax((2,3)).view(n,1,h,w),co.mean((2,3)).view(n,1,h,w),p.amax((2,3)).view(n,1,h,w),p.logsumexp((2,3)).view(n,1,h,w)],1))
add("vd_corrpyr","block",lambda:(CorrPyr(),(R(2,5,11,13,requires_grad=True),R(2,5,11,13,requires_grad=True))),True)
class GWC(nn.Module):
    """group-wise correlation volume with 3D convolution"""
    def __init__(s,g,D): super().__init__(); s.g,s.D=g,D; s.c=C3(g,5,3,padding=1); s.n=nn.BatchNorm3d(5); s.o=C3(5,1,1)
    def forward(s,a,b):
        n,c,h,w=a.shape; v=[]
        for d in range(s.D): v.append((a*(F.pad(b,(d,0))[...,:w])).view(n,s.g,c//s.g,h,w).mean(2))
        y=s.o(F.relu(s.n(s.c(torch.stack(v,2))))).squeeze(1); p=F.softmax(y,1); d=torch.arange(s.D,dtype=p.dtype).view(1,-1,1,1); m=(p*d).sum(1,keepdim=True); return m,((d-m)**2*p).sum(1),-(p*torch.log(p+1e-9)).sum(1)
add("vd_gwc_stereo","block",lambda:(GWC(3,5),(R(2,9,7,13,requires_grad=True),R(2,9,7,13,requires_grad=True))),True)
class FlowLoss(nn.Module):
    def __init__(s): super().__init__(); s.c=C2(6,3,3,padding=1)
    def forward(s,a,b,occ):
        f=s.c(torch.cat([a,b],1)); fl=f[:,:2]*5; w=torch.sigmoid(f[:,2:]); gx=fl[...,1:]-fl[...,:-1]; gy=fl[:,:,1:]-fl[:,:,:-1]; ed=torch.exp(-150*(a[...,1:]-a[...,:-1]).abs().mean(1,keepdim=True)); q=(((a-b)*w).abs().sum(1,keepdim=True)+.01).pow(.4)
        return (q*(~occ)).sum()/((~occ).sum()+1e-6)+(gx.abs()*ed).mean()+gy.abs().mean()*.5-torch.log(w+1e-6).mean()*.01, torch.linalg.vector_norm(fl,dim=1)
add("vd_flowloss","loss",lambda:(FlowLoss(),(R(2,3,14,11,requires_grad=True),R(2,3,14,11,requires_grad=True),torch.rand(2,1,14,11)<.2)),True)
class DepthNorm(nn.Module):
    def __init__(s): super().__init__(); s.c=C2(5,1,3,padding=1)
    def forward(s,x,t):
        d=1/(.01+9.99*torch.sigmoid(s.c(x))); m=t>0; g=torch.where(m,torch.log(d)-torch.log(t.clamp(min=.05)),0.); n=m.sum((1,2,3)).clamp(min=1); si=(g*g).sum((1,2,3))/n-.85*(g.sum((1,2,3))/n)**2
        dx=d[...,:-1,1:]-d[...,:-1,:-1]; dy=d[...,1:,:-1]-d[...,:-1,:-1]; nr=F.normalize(torch.cat([-dx,-dy,torch.ones_like(dx)],1),dim=1); return (si.clamp(min=0)+1e-7).sqrt()*10, nr
add("vd_silog_normals","loss",lambda:(DepthNorm(),(R(2,5,11,16,requires_grad=True),R(2,1,11,16).requires_grad_())),True)
class SmoothDisp(nn.Module):
    def __init__(s): super().__init__(); s.u=T2(6,4,3,stride=2,padding=1,output_padding=1); s.d=C2(4+3,1,3)
    def forward(s,x,im):
        y=F.elu(s.u(x)); d=torch.sigmoid(s.d(F.pad(torch.cat([y,im],1),(1,1,1,1),mode="reflect"))); dn=d/(d.mean((2,3),keepdim=True)+1e-7); gx=(dn[...,:-1]-dn[...,1:]).abs()*torch.exp(-(im[...,:-1]-im[...,1:]).abs().mean(1,keepdim=True)); gy=(dn[:,:,:-1]-dn[:,:,1:]).abs()*torch.exp(-(im[:,:,:-1]-im[:,:,1:]).abs().mean(1,keepdim=True)); return gx.mean()+gy.mean(),d
add("vd_monodepth","loss",lambda:(SmoothDisp(),(R(2,6,6,8,requires_grad=True),R(2,3,12,16,requires_grad=True))),True)
class RCAB(nn.Module):
    def __init__(s,c): super().__init__(); s.a=C2(c,c,3,padding=1); s.b=C2(c,c,3,padding=1); s.d=C2(c,2,1); s.u=C2(2,c,1); s.o=C2(c,12,3,padding=1)
    def forward(s,x): r=s.b(F.relu(s.a(x))); x=x+r*.1*torch.sigmoid(s.u(F.relu(s.d(F.adaptive_avg_pool2d(r,1))))); return F.pixel_shuffle(s.o(x),2).clamp(0,1)
add("vd_rcab_ps","block",lambda:(RCAB(8),(R(2,8,9,7,requires_grad=True),)),True)
add("vd_rcab_bf","block",H(lambda:(RCAB(6),(R(2,6,8,11,requires_grad=True),))),True)
class SRUn(nn.Module):
    def __init__(s): super().__init__(); s.c=C2(12,12,3,padding=1,groups=4); s.e=C2(12,27,1)
    def forward(s,x): y=F.pixel_unshuffle(x,2); y=F.gelu(s.c(y))*y; z=F.pixel_shuffle(s.e(y),3); return z-F.interpolate(x,size=z.shape[2:],mode="bilinear",align_corners=False), z.argmax(1)
add("vd_unshuffle_x15","conv",lambda:(SRUn(),(R(2,3,12,16,requires_grad=True),)),True)
class Haar(nn.Module):
    def __init__(s,c): super().__init__(); s.c=C2(4*c,4*c,3,padding=1); s.t=P(1,4*c,1,1)
    def forward(s,x):
        a,b,c,d=x[:,:,::2,::2]/2,x[:,:,1::2,::2]/2,x[:,:,::2,1::2]/2,x[:,:,1::2,1::2]/2; w=torch.cat([a+b+c+d,-a-b+c+d,-a+b-c+d,a-b-c+d],1); y=s.c(w); y=torch.sign(y)*F.relu(y.abs()-s.t.abs()); l,h,v,g=y.chunk(4,1)
        r0=torch.stack([l-h-v+g,l+h-v-g],-1).flatten(-2); r1=torch.stack([l-h+v-g,l+h+v+g],-1).flatten(-2); return torch.stack([r0,r1],3).flatten(2,3)/2+x
add("vd_haar_shrink","block",lambda:(Haar(3),(R(2,3,10,14,requires_grad=True),)),True)
class Guided(nn.Module):
    def __init__(s,r): super().__init__(); s.r=r; s.c=C2(3,1,1)
    def forward(s,x,y):
        g=s.c(x); bx=lambda t:F.avg_pool2d(t,2*s.r+1,1,s.r,count_include_pad=False); mg,my=bx(g),bx(y); cov=bx(g*y)-mg*my; var=bx(g*g)-mg*mg; A=cov/(var+1e-2); b=my-A*mg; return bx(A)*g+bx(b)
add("vd_guided","conv",lambda:(Guided(2),(R(2,3,13,17,requires_grad=True),R(2,4,13,17,requires_grad=True))),True)
class KPN(nn.Module):
    """kernel prediction"""
    def __init__(s,k): super().__init__(); s.k=k; s.c=C2(6,k*k,3,padding=1)
    def forward(s,x,im):
        k=s.k; ker=s.c(x).softmax(1); p=F.pad(im,(k//2,)*4,mode="reflect"); h,w=im.shape[2:]; pt=p.unfold(2,k,1).unfold(3,k,1).flatten(4); return torch.einsum("nchwk,nkhw->nchw",pt,ker), (ker*ker).sum(1)
add("vd_kpn","block",lambda:(KPN(3),(R(2,6,9,11,requires_grad=True),R(2,3,9,11,requires_grad=True))),True)
class CARAFE(nn.Module):
    def __init__(s,c): super().__init__(); s.e=C2(c,4*9,3,padding=1)
    def forward(s,x):
        n,c,h,w=x.shape; k=F.pixel_shuffle(s.e(x),2).softmax(1); u=F.unfold(x,3,padding=1).view(n,c*9,h,w).repeat_interleave(2,2).repeat_interleave(2,3).view(n,c,9,2*h,2*w); return (u*k[:,None]).sum(2)
add("vd_carafe","block",lambda:(CARAFE(5),(R(2,5,6,8,requires_grad=True),)),True)
class PAC(nn.Module):
    """pixel-adaptive gaussian convolution"""
    def __init__(s): super().__init__(); s.w=P(5,9); s.f=C2(4,3,1)
    def forward(s,x,g):
        n,c,h,w=x.shape; f=s.f(g); u=F.unfold(f,3,padding=1).view(n,3,9,h,w); k=torch.exp(-.5*((u-f[:,:,None])**2).sum(1,keepdim=True)); p=F.unfold(x,3,padding=1).view(n,c,9,h,w); return (p*k*s.w[None,:,:,None,None]).sum(2)/(k.sum(2)+1e-5)
add("vd_pac","block",lambda:(PAC(),(R(2,5,8,10,requires_grad=True),R(2,4,8,10,requires_grad=True))),True)
class Bilateral(nn.Module):
    def __init__(s): super().__init__(); s.c=C2(3,4,3,padding=1); s.ls=nn.Parameter(torch.tensor(-.7))
    def forward(s,x):
        y=s.c(x); p=F.pad(y,(2,2,2,2),mode="reflect"); h,w=y.shape[2:]; num=0; den=0
        for dy,dx in((0,2),(1,1),(2,0),(2,2),(3,4),(4,1)):
            q=p[:,:,dy:dy+h,dx:dx+w]; wt=torch.exp(-(q-y).square().mean(1,keepdim=True)*torch.exp(-2*s.ls)-((dy-2)**2+(dx-2)**2)/4.5); num=num+wt*q; den=den+wt
        return num/den
add("vd_bilateral","conv",lambda:(Bilateral(),(R(2,3,10,13,requires_grad=True),)),True)
class RetNexus(nn.Module):
    """zero-DCE curve iterations"""
    def __init__(s): super().__init__(); s.a=C2(3,6,3,padding=1); s.b=C2(6,9,3,padding=1)
    def forward(s,x):
        r=torch.tanh(s.b(F.relu(s.a(x))))
        for k in r.split(3,1): x=x+k*(x*x-x)
        m=F.avg_pool2d(x.mean(1,keepdim=True),4); R_,G,B_=x.mean((2,3)).unbind(1); col=((R_-G)**2+(R_-B_)**2+(G-B_)**2).pow(.5); return x,(m-.6).pow(2).mean((1,2,3))+col
add("vd_zerodce","block",lambda:(RetNexus(),(torch.rand(2,3,12,16).requires_grad_(),)),True)
class Denorm(nn.Module):
    def __init__(s): super().__init__(); s.u=C2(7,7,3,padding=1); s.o=C2(7,3,1)
    def forward(s,x):
        y=F.interpolate(x,scale_factor=(2,1.5) if False else 2,mode="bilinear",align_corners=True); y=F.leaky_relu(s.u(y),.2); y=y/((y**2).mean(1,keepdim=True)+1e-8).sqrt(); z=s.o(y); sd=z.std(0,unbiased=True).mean(); return torch.cat([z,sd.expand(z.shape[0],1,*z.shape[2:])],1)
add("vd_progan_mbstd","block",lambda:(Denorm(),(R(3,7,5,6,requires_grad=True),)),True)
class ILN(nn.Module):
    """U-GAT-IT AdaLIN"""
    def __init__(s,c): super().__init__(); s.c=C2(c,c,3); s.r=P(1,c,1,1,scale=1); s.l=nn.Linear(c,2*c)
    def forward(s,x):
        y=s.c(F.pad(x,(1,)*4,mode="reflect")); iv,im=torch.var_mean(y,(2,3),keepdim=True); lv,lm=torch.var_mean(y,(1,2,3),keepdim=True); r=s.r.clamp(0,1); z=r*(y-im)/(iv+1e-5).sqrt()+(1-r)*(y-lm)/(lv+1e-5).sqrt(); g,b=s.l(x.mean((2,3))).chunk(2,1); return F.relu(z*g[...,None,None]+b[...,None,None])+x
add("vd_adalin","block",lambda:(ILN(6),(R(2,6,9,12,requires_grad=True),)),True)
add("vd_adalin_h","block",H(lambda:(ILN(5),(R(2,5,10,9,requires_grad=True),)),HF),True)
class EvoNorm(nn.Module):
    def __init__(s,c,g): super().__init__(); s.c=C2(c,c,3,padding=1); s.g=g; s.v=P(1,c,1,1,scale=1); s.ga=P(1,c,1,1); s.be=P(1,c,1,1)
    def forward(s,x):
        y=s.c(x); n,c,h,w=y.shape; v=y.view(n,s.g,c//s.g,h,w).var((2,3,4),keepdim=True).expand(-1,-1,c//s.g,h,w).reshape(n,c,h,w); return y*torch.sigmoid(s.v*y)/torch.sqrt(v+1e-5)*s.ga+s.be
add("vd_evonorm","conv",lambda:(EvoNorm(8,4),(R(2,8,9,13,requires_grad=True),)),True)
class FRN(nn.Module):
    def __init__(s,i,o): super().__init__(); s.c=C2(i,o,(3,2),dilation=(1,2),padding=1); s.t=P(o); s.g=P(o,scale=1); s.b=P(o); s.e=nn.Parameter(torch.tensor([1e-4]))
    def forward(s,x): y=s.c(x); nu=y.pow(2).mean(dim=[2,3],keepdim=True); y=s.g.view(1,-1,1,1)*y*torch.rsqrt(nu+1e-6+s.e.abs())+s.b.view(1,-1,1,1); return torch.max(y,s.t.view(1,-1,1,1))
add("vd_frn_tlu","conv",lambda:(FRN(5,9),(R(2,5,11,12,requires_grad=True),)),True)
class SwitchNorm(nn.Module):
    def __init__(s,c): super().__init__(); s.c=C2(c,c+2,3,padding=1); s.mw=P(3); s.vw=P(3); s.register_buffer("rm",torch.zeros(c+2))
    def forward(s,x):
        y=s.c(x); mi=y.mean((2,3),keepdim=True); vi=y.var((2,3),keepdim=True); ml=mi.mean(1,keepdim=True); t=vi+mi**2; vl=t.mean(1,keepdim=True)-ml**2; mb=mi.mean(0,keepdim=True); vb=t.mean(0,keepdim=True)-mb**2; a=s.mw.softmax(0); b=s.vw.softmax(0); return (y-(a[0]*mi+a[1]*ml+a[2]*mb))/(b[0]*vi+b[1]*vl+b[2]*vb+1e-5).sqrt(), s.rm*.9+.1*mb.view(-1)
add("vd_switchnorm","conv",lambda:(SwitchNorm(6),(R(3,6,8,9,requires_grad=True),)),True)
# ---- batch 5: one product's result read many times
fn("vd_slices_many","conv",lambda c,x:(lambda y:(y[:,0:4]*y[:,4:8].sigmoid()+y[:,8:12].roll((1,-2),(2,3))*y[:,12:16].tanh()-F.max_pool2d(y[:,2:6],3,1,1))/(1+y.abs().mean(1,keepdim=True)))(c(x)),(2,6,11,13),layers=lambda:(C2(6,16,3,padding=1),),train=True)
fn("vd_slices_many_bf","conv",lambda c,x:(lambda y:(y[:,::3]*y[:,1::3].sigmoid()+y[:,2::3].flip(2)*.5, y[...,1:-1].amax(3)-y[:,:,::2].mean(2,keepdim=True).amin(3)))(c(x)),rh(2,5,10,9),layers=lambda:(C2(5,12,(3,1),padding=(1,0)).bfloat16(),),train=True)
fn("vd_stencil_neigh","conv",lambda c,x:(lambda y:(lambda p:F.gelu(p[:,:,:-2,1:-1]+p[:,:,2:,1:-1]+p[:,:,1:-1,:-2]+p[:,:,1:-1,2:]-4*y)*torch.exp(-(y*y)*.5))(F.pad(y,(1,1,1,1),mode="circular")))(c(x)),(2,4,12,10),layers=lambda:(C2(4,6,3,padding=1,padding_mode="circular"),),train=True)
fn("vd_grad3_mag","conv",lambda c,x:(lambda y:torch.sqrt((y[:,:,1:,:-1,:-1]-y[:,:,:-1,:-1,:-1])**2+(y[:,:,:-1,1:,:-1]-y[:,:,:-1,:-1,:-1])**2+(y[:,:,:-1,:-1,1:]-y[:,:,:-1,:-1,:-1])**2+1e-6)-F.avg_pool3d(y.abs(),2,1))(c(x)),(2,3,5,8,7),layers=lambda:(C3(3,5,(3,3,1),padding=(1,1,0),bias=False),),train=True)
fn("vd_complex_conv","conv",lambda a,b,x:(lambda r,i:torch.cat([r*F.relu((r*r+i*i+1e-6).sqrt()-.1)/((r*r+i*i+1e-6).sqrt()),i*torch.rsqrt(r*r+i*i+1e-6)],1))(a(x[...,0])-b(x[...,1]),b(x[...,0])+a(x[...,1])),(2,5,9,11,2),layers=lambda:(C2(5,7,3,padding=1,bias=False),C2(5,7,3,padding=1,bias=False)),train=True)
fn("vd_quaternion","conv",lambda r,i,j,k,x:(lambda w:F.elu(F.conv2d(x,w,padding=1)))(torch.cat([torch.cat([r,-i,-j,-k],1),torch.cat([i,r,-k,j],1),torch.cat([j,k,r,-i],1),torch.cat([k,-j,i,r],1)],0)),(2,8,10,9),layers=lambda:(P(3,2,3,3),P(3,2,3,3),P(3,2,3,3),P(3,2,3,3)),train=True)
fn("vd_cdc_central_diff","conv",lambda w,x:(lambda o:(o-.7*F.conv2d(x,w.sum((2,3),keepdim=True))).relu()*o.sigmoid())(F.conv2d(x,w,padding=1)),(2,6,11,12),layers=lambda:(P(9,6,3,3),),train=True)
fn("vd_cosconv","conv",lambda w,q,x:(lambda y:y.sign()*(y.abs()+1e-3).pow(q.view(1,-1,1,1).exp()))(F.conv2d(x,F.normalize(w.flatten(1),dim=1).view_as(w),padding=1)*torch.rsqrt(F.conv2d(x*x,torch.ones(1,5,3,3),padding=1)+1e-3)),(2,5,12,9),layers=lambda:(P(8,5,3,3),P(8)),train=True)
fn("vd_binconv","conv",lambda w,b,x:(lambda a:F.prelu(b(F.conv2d(a,torch.where(w.abs()<=1,torch.sign(w),w.clamp(-1,1))*w.abs().mean((1,2,3),keepdim=True),padding=1))+x,torch.tensor([.25]*7)))(torch.where(x<0,-torch.ones_like(x)+x*0,torch.ones_like(x)+x*0)),(3,7,9,10),layers=lambda:(P(7,7,3,3),nn.BatchNorm2d(7)),train=True)
fn("vd_fakequant","conv",lambda w,s,x:(lambda q:q*(2**-4)+x[:,:1])(torch.clamp(torch.round(F.conv2d(x,(torch.clamp((w/s).detach().round()-(w/s).detach()+w/s,-8,7)*s),stride=1,padding=(0,1))*16),-128,127)),(2,5,13,11),layers=lambda:(P(8,5,1,3),nn.Parameter(torch.full((8,1,1,1),.05))),train=True)
fn("vd_wn_conv3","conv",lambda v,g,b,x:(lambda y:F.softplus(y,beta=2.)-y.amin(1,keepdim=True))(F.conv3d(x,v*(g/v.square().sum((1,2,3,4),keepdim=True).sqrt()),b,padding=(0,1,1))),(2,4,4,8,7),layers=lambda:(P(7,4,1,3,3),P(7,1,1,1,1,scale=1),P(7)),train=True)
fn("vd_wn_tr1","conv",lambda v,g,x:(lambda y:y*torch.sigmoid(1.702*y)-.5*torch.sin(y).square())(F.conv_transpose1d(x,torch._weight_norm(v,g,0),stride=3,padding=1,output_padding=1)),(2,9,21),layers=lambda:(P(9,6,6),P(9,1,1,scale=1)),train=True)
fn("vd_aniso_w_mask","conv",lambda w,x,m:(lambda y:y.masked_fill(~m,float("-inf")).softmax(1)*y.tanh())(F.conv2d(F.pad(x,(2,0,1,1),mode="replicate"),w*torch.tril(torch.ones(3,3)))),(2,6,8,11),rb(.9,1,10,1,1) if False else (lambda:torch.arange(10).view(1,10,1,1)%3!=2),layers=lambda:(P(10,6,3,3),),train=True)
fn("vd_lse_pool_ch","conv",lambda c,x:(lambda y:torch.logsumexp(y.view(2,3,4,*y.shape[2:])*5,2)/5-torch.log_softmax(y,1)[:,::4])(c(x)),(2,5,10,14),layers=lambda:(C2(5,12,(1,5),padding=(0,2)),),train=True)
fn("vd_sparsemax_like","conv",lambda c,x:(lambda y:(lambda z:z/(z.sum(1,keepdim=True)+1e-6))(F.relu(y-y.amax(1,keepdim=True)+1)))(c(x)),(2,4,13,9),layers=lambda:(T2(4,9,(3,4),stride=(2,1),padding=(1,1),output_padding=(1,0)),),train=True)
fn("vd_gumbelfree_hard","conv",lambda c,o,x:(lambda p:o((F.one_hot(p.argmax(1),6).permute(0,3,1,2).to(p.dtype)-p).detach()+p)+p.max(1,keepdim=True).values)((c(x)/.7).softmax(1)),(2,5,11,8),layers=lambda:(C2(5,6,3,padding=1),C2(6,4,1)),train=True)
fn("vd_vq_soft","conv",lambda c,e,x:(lambda z:(lambda d:torch.einsum("nkhw,kc->nchw",torch.softmax(-d/.5,1),e)-z)(z.square().sum(1,keepdim=True)-2*torch.einsum("nchw,kc->nkhw",z,e)+e.square().sum(1)[None,:,None,None]))(c(x)),(2,5,9,10),layers=lambda:(C2(5,7,3,stride=1,padding=1),P(13,7,scale=1)),train=True)
fn("vd_vae_reparam","loss",lambda c,o,x,e:(lambda mu,lv:(o(mu+torch.exp(.5*lv)*e),-.5*(1+lv-mu*mu-lv.exp()).sum((1,2,3))))(*(lambda t:(t[0],t[1].clamp(-30,20)))(c(x).chunk(2,1))),(2,4,12,10),(2,5,6,5),layers=lambda:(C2(4,10,3,stride=2,padding=1),T2(5,4,4,stride=2,padding=1)),train=True)
fn("vd_realnvp_check","block",lambda a,b,x:(lambda m:(lambda h:(lambda ls,t:(x*m+(1-m)*((x*ls.exp())+t),(ls*(1-m)).sum((1,2,3))))(torch.tanh(h[:,:4])*.9,h[:,4:]))(b(F.relu(a(x*m)))))(((torch.arange(10)[:,None]+torch.arange(7))%2).float()),(2,4,10,7),layers=lambda:(C2(4,9,3,padding=1),C2(9,8,3,padding=1)),train=True)
fn("vd_glow_inv1x1","block",lambda w,s,b,c,x:(lambda y:(lambda xa,xb:(lambda sc,sh:torch.cat([xa,(xb+sh)*torch.sigmoid(sc+2)],1))(*(lambda t:(t[:,::2],t[:,1::2]))(c(xa))))(*y.chunk(2,1)))(F.conv2d((x+b)*s.exp(),w[...,None,None])),(3,6,8,9),layers=lambda:(P(6,6,scale=.4),P(6,1,1),P(6,1,1),C2(3,6,3,padding=1)),train=True)
class Mixlog(nn.Module):
    """discretised mixture of logistics, one channel"""
    def __init__(s): super().__init__(); s.c=C2(5,9,3,padding=1)
    def forward(s,x,t):
        lp,m,ls=s.c(x).split(3,1); ls=ls.clamp(min=-7.); d=t-m; iv=torch.exp(-ls); p=iv*(d+1/255); q=iv*(d-1/255); cd=torch.sigmoid(p)-torch.sigmoid(q); o=torch.where(t<-.999,p-F.softplus(p),torch.where(t>.999,-F.softplus(q),torch.where(cd>1e-5,cd.clamp(min=1e-12).log(),iv*d-ls-2*F.softplus(iv*d)-math.log(127.5)))); return -torch.logsumexp(o+F.log_softmax(lp,1),1).sum((1,2))
add("vd_mixlogistics","loss",lambda:(Mixlog(),(R(2,5,10,9,requires_grad=True),torch.rand(2,1,10,9).mul(2).sub(1).requires_grad_())),True)
class CapsConv(nn.Module):
    def __init__(s): super().__init__(); s.c=C2(6,24,3,stride=2); s.w=P(4,3,8,5)
    def forward(s,x):
        y=s.c(x).view(x.shape[0],3,8,-1).permute(0,1,3,2); n2=y.square().sum(-1,keepdim=True); y=n2/(1+n2)*y/(n2+1e-8).sqrt(); u=torch.einsum("nkpi,okij->nokpj",y,s.w); b=torch.zeros_like(u[...,:1])
        for _ in range(2):
            v=(b.softmax(1)*u).sum((2,3),keepdim=True); n2=v.square().sum(-1,keepdim=True); v=v*n2.sqrt()/(1+n2+1e-7); b=b+(u*v).sum(-1,keepdim=True)
        return v.squeeze(2).squeeze(2).norm(dim=-1), v
add("vd_caps_routing","block",lambda:(CapsConv(),(R(2,6,9,11,requires_grad=True),)),True)
class VLAD(nn.Module):
    def __init__(s): super().__init__(); s.c=C2(7,5,1,bias=False); s.ce=P(5,7)
    def forward(s,x): x=F.normalize(x,dim=1); a=F.softmax(s.c(x).flatten(2),1); xf=x.flatten(2); v=torch.einsum("nkp,ncp->nkc",a,xf)-a.sum(2,keepdim=True)*s.ce; return F.normalize(F.normalize(v,dim=2).flatten(1),dim=1)
add("vd_netvlad","block",lambda:(VLAD(),(R(3,7,8,10,requires_grad=True),)),True)
class BiPool(nn.Module):
    def __init__(s): super().__init__(); s.a=C2(5,6,1); s.b=C2(5,7,3,padding=1)
    def forward(s,x): a=F.relu(s.a(x)).flatten(2); b=F.relu(s.b(x)).flatten(2); z=(a@b.mT/a.shape[2]).flatten(1); z=torch.sign(z)*(z.abs()+1e-5).sqrt(); return F.normalize(z)
add("vd_bilinearpool","block",lambda:(BiPool(),(R(3,5,9,11,requires_grad=True),)),True)
class EfAtt(nn.Module):
    def __init__(s,c): super().__init__(); s.q=C2(c,3*c,1,bias=False); s.d=C2(3*c,3*c,5,padding=2,groups=3*c,bias=False); s.o=C2(2*c,c,1)
    def forward(s,x):
        n,c,h,w=x.shape; q=s.q(x); q=torch.cat([q,s.d(q)],1).view(n,6,c,h*w).view(n,2,3,c,h*w); q_,k,v=q.unbind(2); q_,k=F.relu(q_),F.relu(k); v=F.pad(v,(0,0,0,1),value=1.); kv=v@k.mT; y=kv@q_; y=y[:,:,:-1]/(y[:,:,-1:]+1e-5); return x+s.o(y.reshape(n,2*c,h,w))
add("vd_efficientvit","block",lambda:(EfAtt(6),(R(2,6,8,9,requires_grad=True),)),True)
class CrissCross(nn.Module):
    def __init__(s,c): super().__init__(); s.q=C2(c,3,1); s.k=C2(c,3,1); s.v=C2(c,c,1); s.g=P(1)
    def forward(s,x):
        q,k,v=s.q(x),s.k(x),s.v(x); h,w=x.shape[2:]; eh=torch.einsum("nchw,ncgw->nhwg",q,k)+torch.diag(torch.full((h,),-1e4))[:,None,:]; ew=torch.einsum("nchw,nchg->nhwg",q,k); a=torch.cat([eh,ew],3).softmax(3); return s.g*(torch.einsum("nhwg,ncgw->nchw",a[...,:h],v)+torch.einsum("nhwg,nchg->nchw",a[...,h:],v))+x
add("vd_crisscross","block",lambda:(CrissCross(7),(R(2,7,8,10,requires_grad=True),)),True)
class DANet(nn.Module):
    def __init__(s,c): super().__init__(); s.c=C2(c,c,3,padding=1); s.g=P(1)
    def forward(s,x): y=F.relu(s.c(x)).flatten(2); e=y@y.mT; a=(e.amax(-1,keepdim=True)-e).softmax(-1); return s.g*(a@y).view_as(x)+x
add("vd_channelatt","block",lambda:(DANet(9),(R(2,9,8,11,requires_grad=True),)),True)
add("vd_channelatt_h","block",H(lambda:(DANet(8),(R(2,8,7,12,requires_grad=True),)),HF),True)
class GCNet(nn.Module):
    def __init__(s,c): super().__init__(); s.m=C2(c,1,1); s.a=C2(c,4,1); s.n=nn.LayerNorm([4,1,1]); s.b=C2(4,c,1); s.u=C2(c,c,3,padding=1)
    def forward(s,x): y=s.u(x); k=s.m(y).flatten(2).softmax(2); ctx=(y.flatten(2)@k.mT)[...,None]; return F.relu(y+s.b(F.relu(s.n(s.a(ctx)))))
add("vd_gcnet","block",lambda:(GCNet(8),(R(2,8,9,7,requires_grad=True),)),True)
class HaloAtt(nn.Module):
    """local attention with conv projections"""
    def __init__(s,c): super().__init__(); s.p=C2(c,3*c,1,bias=False); s.rh=P(c,1,1,3,1); s.c=c
    def forward(s,x):
        n,c,h,w=x.shape; q,k,v=s.p(x).chunk(3,1); k=F.pad(k,(1,)*4).unfold(2,3,1).unfold(3,3,1)+s.rh; v=F.pad(v,(1,)*4).unfold(2,3,1).unfold(3,3,1); a=(q[...,None,None]*k).reshape(n,2,c//2,h,w,9).sum(2).softmax(-1); return (a[:,:,None]*v.reshape(n,2,c//2,h,w,9)).sum(-1).view(n,c,h,w)
add("vd_localatt","block",lambda:(HaloAtt(6),(R(2,6,7,9,requires_grad=True),)),True)
add("vd_localatt_bf","block",H(lambda:(HaloAtt(4),(R(2,4,8,10,requires_grad=True),))),True)
class Conformer(nn.Module):
    def __init__(s,c): super().__init__(); s.n=nn.LayerNorm(c); s.a=C1(c,2*c,1); s.d=C1(c,c,7,padding=3,groups=c); s.b=nn.BatchNorm1d(c); s.o=C1(c,c,1)
    def forward(s,x,m):
        y=F.glu(s.a(s.n(x).mT),1).masked_fill(m[:,None],0.); y=s.o(F.silu(s.b(s.d(y)))).mT; return x+.5*y.masked_fill(m[...,None],0.)
add("vd_conformer","block",lambda:(Conformer(11),(R(3,29,11,requires_grad=True),torch.rand(3,29)<.2)),True)
class ECAPA(nn.Module):
    """attentive statistics pooling"""
    def __init__(s,c): super().__init__(); s.c=C1(c,c,3,padding=2,dilation=2); s.a=C1(3*c,6,1); s.b=C1(6,c,1); s.n=nn.BatchNorm1d(2*c)
    def forward(s,x,m):
        y=F.relu(s.c(x)); mf=m[:,None].float(); tot=mf.sum(2,keepdim=True); mu=(y*mf).sum(2,keepdim=True)/tot; sd=((((y-mu)**2)*mf).sum(2,keepdim=True)/tot).clamp(min=1e-12).sqrt(); e=s.b(torch.tanh(s.a(torch.cat([y,mu.expand_as(y),sd.expand_as(y)],1)))).masked_fill(mf==0,float("-inf")).softmax(2); mu=(y*e).sum(2); sd=((e*(y-mu[...,None])**2).sum(2)).clamp(min=1e-12).sqrt(); return s.n(torch.cat([mu,sd],1))
add("vd_ecapa","block",lambda:(ECAPA(9),(R(3,9,31,requires_grad=True),(torch.arange(31)[None]<torch.tensor([[31],[20],[9]])))),True)
class PQMF(nn.Module):
    def __init__(s): super().__init__(); s.register_buffer("k",R(4,1,15)*.2); s.c=C1(4,4,5,padding=2); 
    def forward(s,x): y=F.conv1d(F.pad(x,(7,7)),s.k,stride=4); y=y+torch.tanh(s.c(y)); z=F.conv_transpose1d(y,s.k*4,stride=4,padding=6); return z*.95-F.pad(z[...,:-1],(1,0))*.9, y.pow(2).mean(2).add(1e-7).log()
add("vd_pqmf_preemph","conv",lambda:(PQMF(),(R(3,1,80,requires_grad=True),)),True)
class STFTLoss(nn.Module):
    def __init__(s,n,hop): super().__init__(); t=torch.arange(n)/n; f=torch.arange(float(n//2+1))[:,None]; w=.5-.5*torch.cos(2*math.pi*t); s.register_buffer("k",torch.stack([torch.cos(2*math.pi*f*t)*w,-torch.sin(2*math.pi*f*t)*w],1).flatten(0,1)[:,None]); s.h=hop; s.n=n
    def m(s,x): z=F.conv1d(F.pad(x[:,None],(s.n//2,)*2,mode="reflect"),s.k,stride=s.h); return (z[:,::2]**2+z[:,1::2]**2).clamp(min=1e-7).sqrt()
    def forward(s,x,y): a,b=s.m(x),s.m(y); return ((b-a)**2).sum((1,2)).sqrt()/(b**2).sum((1,2)).sqrt()+(a.log()-b.log()).abs().mean((1,2))
add("vd_stftloss","loss",lambda:(STFTLoss(20,7),(R(2,140,requires_grad=True),R(2,140,requires_grad=True))),True)
class SincConv(nn.Module):
    def __init__(s,o,k): super().__init__(); s.lo=nn.Parameter(torch.rand(o,1)*.2+.01); s.bw=nn.Parameter(torch.rand(o,1)*.2); t=torch.arange(1.,k//2+1)[None]; s.register_buffer("t",t); s.register_buffer("w",.54-.46*torch.cos(2*math.pi*torch.arange(k)/k))
    def forward(s,x):
        lo=s.lo.abs()+.01; hi=(lo+s.bw.abs()+.01).clamp(max=.5); r=(torch.sin(2*math.pi*hi*s.t)-torch.sin(2*math.pi*lo*s.t))/(math.pi*s.t); bp=torch.cat([r.flip(1),2*(hi-lo),r],1); bp=bp/bp.amax(1,keepdim=True)*s.w; y=F.conv1d(x,bp[:,None],stride=2); return F.max_pool1d(y.abs(),3).add(1).log()
add("vd_sincconv","conv",lambda:(SincConv(9,13),(R(3,1,91,requires_grad=True),)),True)
class PCEN(nn.Module):
    def __init__(s,c): super().__init__(); s.c=C1(5,c,3,padding=1); s.a=P(c); s.d=P(c); s.r=P(c); s.register_buffer("k",(.3*.7**torch.arange(8.)).flip(0).view(1,1,8).repeat(c,1,1))
    def forward(s,x): e=F.softplus(s.c(x)); M_=F.conv1d(F.pad(e,(7,0)),s.k,groups=e.shape[1]); v=lambda p:p.exp()[:,None]; sm=torch.exp(-s.a[:,None].sigmoid()*torch.log(1e-6+M_)); return (e*sm+v(s.d)).pow(v(s.r))-v(s.d).pow(v(s.r))
add("vd_pcen","conv",lambda:(PCEN(7),(R(2,5,44,requires_grad=True),)),True)
class DPRNNmask(nn.Module):
    def __init__(s): super().__init__(); s.c=C2(6,6,1); s.o=C1(6,12,1); s.g=C1(6,12,1); s.p=nn.PReLU()
    def forward(s,x):
        y=s.c(s.p(x)); a,b=y.transpose(2,3).reshape(2,6,-1,10)[:,:,:,:5].flatten(2),y.transpose(2,3).reshape(2,6,-1,10)[:,:,:,5:].flatten(2); z=F.pad(a,(5,0))+F.pad(b,(0,5)); return torch.tanh(s.o(z))*torch.sigmoid(s.g(z))
add("vd_overlapadd","block",lambda:(DPRNNmask(),(R(2,6,10,7,requires_grad=True),)),True)
# ---- batch 6: halves of earlier kinds, more odd tails
add("vd_ssim_bf","loss",H(lambda:(SSIM(2,5),(torch.rand(2,2,15,18).requires_grad_(),torch.rand(2,2,15,18).requires_grad_()))),True)
add("vd_gwc_h","block",H(lambda:(GWC(2,4),(R(2,8,6,11,requires_grad=True),R(2,8,6,11,requires_grad=True))),HF),True)
add("vd_switchnorm_bf","conv",H(lambda:(SwitchNorm(5),(R(3,5,9,7,requires_grad=True),))),True)
add("vd_frn_h","conv",H(lambda:(FRN(6,7),(R(2,6,9,14,requires_grad=True),)),HF),True)
add("vd_spade_bf","block",H(lambda:(SPADE(6,3),(R(2,6,8,10,requires_grad=True),R(2,3,4,5,requires_grad=True)))),True)
add("vd_kpn_h","block",H(lambda:(KPN(3),(R(2,5+1,10,8,requires_grad=True),R(2,3,10,8,requires_grad=True))),HF),True)
add("vd_gsm_bf","block",H(lambda:(GSM(6),(R(2,6,4,8,7,requires_grad=True),))),True)
add("vd_octave_bf","block",H(lambda:(Octave(),(R(2,6,8,10,requires_grad=True),R(2,3,4,5,requires_grad=True)))),True)
add("vd_evonorm_bf","conv",H(lambda:(EvoNorm(9,3),(R(2,9,8,11,requires_grad=True),))),True)
add("vd_tasnet_h","block",H(lambda:(TasBlock(8,10),(R(2,8,39,requires_grad=True),)),HF),True)
add("vd_coordatt_bf","block",H(lambda:(CoordAtt(9,5),(R(2,9,11,8,requires_grad=True),))),True)
add("vd_triplet_h","block",H(lambda:(TripletAtt(),(R(2,6,8,10,requires_grad=True),)),HF),True)
add("vd_involution_bf","block",H(lambda:(Involution(6,3,3),(R(2,6,10,7,requires_grad=True),))),True)
add("vd_convexup_h","block",H(lambda:(ConvexUp(),(R(2,2,6,10,requires_grad=True),R(2,7,6,10,requires_grad=True))),HF),True)
add("vd_r2p1d_bf","block",H(lambda:(R21(4,7,6),(R(2,4,3,9,8,requires_grad=True),))),True)
add("vd_zerodce_h","block",H(lambda:(RetNexus(),(torch.rand(2,3,8,20).requires_grad_(),)),HF),True)
fn("vd_mtask_h","conv",lambda c,x:(lambda y:(y[:,:3].softmax(1),y[:,3:4].sigmoid()*10,F.normalize(y[:,4:7],dim=1),y[:,7:].exp().clamp(max=50)*y[:,3:4]))(c(x)),rf(2,6,9,12),layers=lambda:(C2(6,9,3,padding=1).half(),),train=True)
fn("vd_fcos_bf","conv",lambda c,s,x:(lambda y:(lambda l,t,r,b:torch.stack([torch.minimum(l,r)/torch.maximum(l,r).clamp(min=1e-2)*(torch.minimum(t,b)/torch.maximum(t,b).clamp(min=1e-2)),(l+r)*(t+b)],1))(*F.softplus(y*s).unbind(1)))(c(x)),rh(2,7,10,9),layers=lambda:(C2(7,4,3,padding=1).bfloat16(),nn.Parameter(torch.tensor(1.3).bfloat16())),train=True)
class GIoU(nn.Module):
    def __init__(s): super().__init__(); s.c=C2(6,4,1)
    def forward(s,x,t):
        p=s.c(x).exp(); l,tp,r,b=p.unbind(1); L,T,Rr,Bb=t.abs().unbind(1); a=(l+r)*(tp+b); A=(L+Rr)*(T+Bb); iw=torch.min(l,L)+torch.min(r,Rr); ih=torch.min(tp,T)+torch.min(b,Bb); i=iw*ih; u=a+A-i; g=(torch.max(l,L)+torch.max(r,Rr))*(torch.max(tp,T)+torch.max(b,Bb)); return (1-(i+1)/(u+1)+(g-u)/g.clamp(min=1e-6)).mean((1,2))
add("vd_giou_dense","loss",lambda:(GIoU(),(R(2,6,9,13,requires_grad=True),R(2,4,9,13,requires_grad=True))),True)
class NCA(nn.Module):
    """neural cellular automaton step with alive masks"""
    def __init__(s,c): super().__init__(); k=torch.tensor([[1.,2,1],[0,0,0],[-1,-2,-1]])/8; e=torch.zeros(3,3); e[1,1]=1; s.register_buffer("k",torch.stack([e,k,k.t()])[:,None].repeat(c,1,1,1)); s.a=C2(3*c,17,1); s.b=C2(17,c,1,bias=False); s.c=c
    def forward(s,x,fire):
        al=lambda t:F.max_pool2d(t[:,3:4],3,1,1)>.1; pre=al(x); y=x+s.b(F.relu(s.a(F.conv2d(F.pad(x,(1,)*4,mode="circular"),s.k,groups=s.c))))*fire; return (y*(pre&al(y)).to(y.dtype)).clamp(-10,10)
add("vd_nca","block",lambda:(NCA(6),(R(2,6,11,9,requires_grad=True),torch.rand(2,1,11,9)<.5)),True)
class GrayScott(nn.Module):
    def __init__(s): super().__init__(); s.register_buffer("k",torch.tensor([[.05,.2,.05],[.2,-1,.2],[.05,.2,.05]])[None,None].repeat(2,1,1,1)); s.f=P(1,scale=.03); s.c=C2(2,2,1)
    def forward(s,x):
        for _ in range(2):
            l=F.conv2d(F.pad(x,(1,)*4,mode="circular"),s.k,groups=2); u,v=x.chunk(2,1); r=u*v*v; x=x+torch.cat([l[:,:1]-r+s.f*(1-u),.5*l[:,1:]+r-(s.f+.062)*v],1)
        return x+.1*torch.tanh(s.c(x))
add("vd_grayscott","conv",lambda:(GrayScott(),(torch.rand(3,2,13,12).requires_grad_(),)),True)
class Wave3(nn.Module):
    """7-point stencil in 3D as a convolution, with absorbing mask"""
    def __init__(s): super().__init__(); k=torch.zeros(3,3,3); k[1,1]=torch.tensor([1.,-6,1]); k[1,0,1]=k[1,2,1]=k[0,1,1]=k[2,1,1]=1; s.register_buffer("k",k[None,None]); s.v=P(1,1,5,8,7)
    def forward(s,u,up,src): c2=torch.sigmoid(s.v)*.25; n=2*u-up+c2*F.conv3d(u,s.k,padding=1)+src; return n*torch.exp(-.1*(n.abs()>1.5).to(n.dtype)), (n-up).square().sum((2,3,4))/2
add("vd_wave3d","conv",lambda:(Wave3(),tuple(R(2,1,5,8,7,requires_grad=True) for _ in range(3))),True)
class NSVort(nn.Module):
    """velocity from a stream function, advection with upwinding"""
    def __init__(s): super().__init__(); s.c=C2(2,1,5,padding=2,padding_mode="circular")
    def forward(s,w,q):
        p=s.c(torch.cat([w,q],1)); u=(p.roll(-1,2)-p.roll(1,2))/2; v=-(p.roll(-1,3)-p.roll(1,3))/2; gx=torch.where(u>0,w-w.roll(1,3),w.roll(-1,3)-w); gy=torch.where(v>0,w-w.roll(1,2),w.roll(-1,2)-w); return w-.1*(u*gx+v*gy)+.01*(w.roll(1,2)+w.roll(-1,2)+w.roll(1,3)+w.roll(-1,3)-4*w), (u*u+v*v).mean((1,2,3)).sqrt()
add("vd_vorticity","conv",lambda:(NSVort(),(R(2,1,14,11,requires_grad=True),R(2,1,14,11,requires_grad=True))),True)
class DiffBlk(nn.Module):
    def __init__(s,i,o,e): super().__init__(); s.n=nn.GroupNorm(3,i); s.a=C2(i,o,3,padding=1); s.e=nn.Linear(e,2*o); s.m=nn.GroupNorm(5,o); s.b=C2(o,o,3,padding=1); s.k=C2(i,o,1)
    def forward(s,x,e):
        h=F.silu(s.n(x)); h=F.interpolate(h,scale_factor=2,mode="nearest"); x=F.interpolate(x,scale_factor=2,mode="nearest"); h=s.a(h); g,b=s.e(F.silu(e))[:,:,None,None].chunk(2,1); h=s.b(F.silu(s.m(h)*(1+g)+b)); return (s.k(x)+h)*2**-.5
add("vd_diffres_up","block",lambda:(DiffBlk(6,10,9),(R(2,6,5,7,requires_grad=True),R(2,9,requires_grad=True))),True)
add("vd_diffres_up_bf","block",H(lambda:(DiffBlk(9,5,6),(R(2,9,4,6,requires_grad=True),R(2,6,requires_grad=True)))),True)
class EDMpre(nn.Module):
    def __init__(s): super().__init__(); s.a=C2(3,8,3,padding=1); s.b=C2(8,3,3,padding=1); s.e=nn.Linear(1,8)
    def forward(s,x,sg,n):
        sg=(sg*1.2-1.2).exp().view(-1,1,1,1); y=x+n*sg; cs=.25/(sg**2+.25); co=sg*.5/(sg**2+.25).sqrt(); ci=1/(sg**2+.25).sqrt(); h=F.silu(s.a(ci*y)+s.e(sg.log().view(-1,1)/4)[...,None,None]); D=cs*y+co*s.b(h); return ((sg**2+.25)/(sg*.5)**2*(D-x)**2).mean((1,2,3)),D.clamp(-1,1)
add("vd_edm","loss",lambda:(EDMpre(),(R(3,3,9,11,requires_grad=True),R(3,requires_grad=True),R(3,3,9,11,requires_grad=True))),True)
class MPConv(nn.Module):
    """magnitude-preserving convolution and sum"""
    def __init__(s,c): super().__init__(); s.w=P(c,c,3,3,scale=1); s.g=P(1)
    def forward(s,x):
        x=x/(1e-4+torch.linalg.vector_norm(x,dim=1,keepdim=True)*x.shape[1]**-.5); w=s.w.float(); w=w/(1e-4+torch.linalg.vector_norm(w,dim=(1,2,3),keepdim=True)/math.sqrt(w[0].numel())); y=F.conv2d(F.silu(x)/.596,w*(s.g/math.sqrt(w[0].numel())),padding=1); return torch.lerp(x,y,.3)/math.sqrt(.58)
add("vd_mpconv","conv",lambda:(MPConv(7),(R(2,7,10,9,requires_grad=True),)),True)
class NeRFgrid(nn.Module):
    """density from a 3D convolution, composited along a depth axis"""
    def __init__(s): super().__init__(); s.c=C3(5,4,3,padding=1)
    def forward(s,x,dl):
        y=s.c(x); sg=F.softplus(y[:,:1]-1); rgb=torch.sigmoid(y[:,1:])*1.002-.001; al=1-torch.exp(-sg*dl.abs()); T=torch.cumprod(torch.cat([torch.ones_like(al[:,:,:1]),1-al[:,:,:-1]+1e-10],2),2); w=al*T; return (w*rgb).sum(2)+(1-w.sum(2)), (w*torch.linspace(.2,2,x.shape[2])[:,None,None]).sum(2)
add("vd_voxelrender","block",lambda:(NeRFgrid(),(R(2,5,6,7,8,requires_grad=True),R(2,1,6,1,1,requires_grad=True))),True)
class MPI(nn.Module):
    def __init__(s): super().__init__(); s.c=C2(6,20,3,padding=1)
    def forward(s,x):
        n,_,h,w=x.shape; y=s.c(x).view(n,5,4,h,w); a=torch.sigmoid(y[:,:,3:]); o=torch.zeros_like(y[:,0,:3])
        for k in range(5): o=y[:,k,:3].tanh()*a[:,k]+o*(1-a[:,k])
        return o
add("vd_mpi_over","conv",lambda:(MPI(),(R(2,6,9,10,requires_grad=True),)),True)
fn("vd_time_avgs","conv",lambda c,x:(lambda y:torch.cat([y[:,:,::2]-y[:,:,1::2],(y[:,:,::2]+y[:,:,1::2]).amax(1,keepdim=True).expand(-1,2,-1,-1,-1)],1).permute(0,2,1,3,4).flatten(0,1))(c(x)),(2,3,6,7,9),layers=lambda:(C3(3,5,(1,5,3),padding=(0,2,1)),),train=True)
fn("vd_nhwc_in","conv",lambda c,g,b,x:(lambda y:F.layer_norm(y.permute(0,2,3,1),(9,),g,b,1e-6)*x[...,:1].sigmoid())(c(x.permute(0,3,1,2))),(2,10,12,5),layers=lambda:(C2(5,9,3,padding=1),P(9,scale=1),P(9)),train=True)
fn("vd_nthwc_in_bf","conv",lambda c,x:(lambda y:(y.movedim(1,-1).relu()**2).cumsum(1)/y.shape[2]-x[...,:1])(c(x.movedim(-1,1))),rh(2,4,7,6,5),layers=lambda:(C3(5,8,(3,1,1),padding=(1,0,0)).bfloat16(),),train=True)
fn("vd_wpermuted","conv",lambda w,x:(lambda y:y.abs().pow(1.5).mul(y.sign())-y.mean((0,2,3),keepdim=True))(F.conv2d(x,w.permute(3,2,0,1).flip(2,3),stride=(2,1))),(3,5,12,11),layers=lambda:(P(3,3,5,8),),train=True)
fn("vd_hwio_group_h","conv",lambda w,x:F.conv2d(x,w.permute(3,2,0,1),padding="same",dilation=2,groups=2).unflatten(1,(2,5)).softmax(2).sub(.2).flatten(1,2)*x.amax(),rf(2,6,11,13),layers=lambda:(nn.Parameter((torch.randn(3,3,3,10)*.2).half()),),train=True)
fn("vd_shared_two_scale","conv",lambda c,x:(lambda a,b:a*F.interpolate(b,size=a.shape[2:],mode="bilinear",align_corners=False).sigmoid()+torch.maximum(a,F.interpolate(b,size=a.shape[2:],mode="nearest")))(c(x),c(F.avg_pool2d(x,2))),(2,5,12,10),layers=lambda:(C2(5,7,3,padding=1),),train=True)
fn("vd_flip_tta","conv",lambda c,x:(lambda p,q:((p+q.flip(3))/2,(p*(p.clamp(min=1e-6)/q.flip(3).clamp(min=1e-6)).log()).sum(1)))(c(x).softmax(1),c(x.flip(3)).softmax(1)),(2,4,9,13),layers=lambda:(C2(4,6,(3,5),padding=(1,2)),),train=True)
fn("vd_rot4_group","conv",lambda w,x:(lambda y:(y.amax(1)-y.mean(1)).relu()+y.std(1,unbiased=False))(torch.stack([F.conv2d(x,torch.rot90(w,k,(2,3)),padding=1) for k in range(4)],1)),(2,4,9,10),layers=lambda:(P(6,4,3,3),),train=True)
fn("vd_mixup_ce","loss",lambda c,x,t,l:(lambda lg:(l.sigmoid()*F.cross_entropy(lg,t,reduction="none")+(1-l.sigmoid())*F.cross_entropy(lg,t.flip(0),reduction="none")).mean((1,2))+.01*lg.logsumexp(1).square().mean((1,2)))(c(torch.lerp(x.flip(0),x,l.sigmoid()[:,None]))),(4,5,9,8),ri(7,4,9,8),(4,1,1),layers=lambda:(C2(5,7,3,padding=1),),train=True)
fn("vd_dense_infonce","loss",lambda c,x,y:(lambda a,b:F.cross_entropy((a.mT@b).flatten(0,1)/.07,torch.arange(30).repeat(2)))(F.normalize(c(x).flatten(2),dim=1),F.normalize(c(y).flatten(2),dim=1)),(2,5,10,12),(2,5,10,12),layers=lambda:(C2(5,11,3,stride=2,padding=1),),train=True)
fn("vd_hinge_gan_r1","loss",lambda c,d,r,f:(lambda a,b:(F.relu(1-a).mean((1,2,3))+F.relu(1+b).mean((1,2,3)),-b.mean(),F.softplus(-(a-b.mean())).mean()))(d(F.leaky_relu(c(r),.2)),d(F.leaky_relu(c(f),.2))),(2,3,13,12),(2,3,13,12),layers=lambda:(C2(3,8,4,stride=2,padding=1),C2(8,1,(3,4))),train=True)
# ---- batch 7
class Recon3(nn.Module):
    def __init__(s): super().__init__(); s.e=C3(3,6,(2,3,3),stride=(1,2,1),padding=(0,1,1)); s.d=T3(6,3,(2,3,3),stride=(1,2,1),padding=(0,1,1)); s.n=nn.GroupNorm(2,6)
    def forward(s,x,m): z=s.n(s.e(x*(~m))); y=s.d(F.gelu(z))[:,:,:,:x.shape[3]]; d=y-x; return (torch.where(d.abs()<.5,d*d,d.abs()-.25)*m).sum((1,2,3,4))/m.sum((1,2,3,4)).clamp(min=1), z.logsumexp(1)
add("vd_maskrecon3","loss",lambda:(Recon3(),(R(2,3,4,9,7,requires_grad=True),torch.rand(2,1,4,9,7)<.4)),True)
class Deep(nn.Module):
    """deep supervision of two decoder levels"""
    def __init__(s): super().__init__(); s.a=C2(4,8,3,padding=1); s.b=C2(8,10,3,stride=2,padding=1); s.u=T2(10,8,2,stride=2); s.h1=C2(8,3,1); s.h2=C2(10,3,1)
    def forward(s,x,t):
        a=F.elu(s.a(x)); b=F.elu(s.b(a)); u=F.elu(s.u(b))+a; o=F.one_hot(t,3).permute(0,3,1,2).to(x.dtype); l=0
        for lg,w,tt in((s.h1(u),1.,o),(s.h2(b),.5,F.avg_pool2d(o,2))): p=lg.softmax(1); l=l+w*(1-(2*(p*tt).sum((0,2,3))+1)/((p+tt).sum((0,2,3))+1)).mean()-w*(tt*lg.log_softmax(1)).mean()
        return l
add("vd_deepsup","loss",lambda:(Deep(),(R(2,4,10,12,requires_grad=True),torch.randint(0,3,(2,10,12)))),True)
class NestedU(nn.Module):
    def __init__(s): super().__init__(); s.c0=C2(5,6,3,padding=1); s.c1=C2(6,8,3,padding=1); s.u=T2(8,6,2,stride=2); s.n01=nn.BatchNorm2d(6); s.c01=C2(12,6,3,padding=1); s.f=C2(18,4,1)
    def forward(s,x): a=F.relu(s.c0(x)); b=F.relu(s.c1(F.max_pool2d(a,2))); u=s.u(b); v=F.relu(s.n01(s.c01(torch.cat([a,u],1)))); y=s.f(torch.cat([v,a,u],1)); return y.sigmoid()*(y.amax(1,keepdim=True)==y)
add("vd_unetpp","block",lambda:(NestedU(),(R(2,5,8,14,requires_grad=True),)),True)
class AASoft(nn.Module):
    def __init__(s): super().__init__(); s.c=C2(6,9,(3,3),stride=(2,3),padding=(1,0),bias=False); s.k=C2(6,9,1); s.n=nn.BatchNorm2d(9,affine=False)
    def forward(s,x): w=s.k(x).softmax(1); p=F.unfold(x,3,padding=1).view(*x.shape[:2],9,*x.shape[2:]); l=(p*w[:,None]).sum(2); return s.n(s.c(x-l)).square().sum(1)
add("vd_adaptlowpass","block",lambda:(AASoft(),(R(2,6,9,12,requires_grad=True),)),True)
class StripPool(nn.Module):
    def __init__(s,c): super().__init__(); s.a=C2(c,c,(3,1),padding=(1,0)); s.b=C2(c,c,(1,3),padding=(0,1)); s.o=C2(c,c,1)
    def forward(s,x): y=s.a(x.mean(3,keepdim=True)); z=s.b(x.amax(2,keepdim=True)); return x*torch.sigmoid(s.o(F.relu(y+z)))+ (y*z).rsqrt().nan_to_num(0.,0.,0.)*0 + y.sub(z).abs()
add("vd_strippool","block",lambda:(StripPool(7),(R(2,7,10,13,requires_grad=True),)),True)
class PConvFaster(nn.Module):
    def __init__(s): super().__init__(); s.c=C2(3,3,3,padding=1,bias=False); s.a=C2(11,15,1,bias=False); s.n=nn.BatchNorm2d(15); s.b=C2(15,11,1,bias=False); s.g=nn.Parameter(torch.full((11,),1e-2))
    def forward(s,x): p,q=x.split([3,8],1); y=torch.cat([s.c(p),q],1); return x+s.g[:,None,None]*s.b(F.relu(s.n(s.a(y))))
add("vd_fasternet","block",lambda:(PConvFaster(),(R(2,11,8,9,requires_grad=True),)),True)
class ShiftMLP(nn.Module):
    def __init__(s,c): super().__init__(); s.a=C2(c,2*c,1); s.n=nn.GroupNorm(1,2*c); s.b=C2(2*c,c,1)
    def forward(s,x):
        y=F.gelu(s.n(s.a(x))); g=y.chunk(5,1); z=torch.cat([F.pad(g[0],(1,0))[...,:-1],F.pad(g[1],(0,1))[...,1:],F.pad(g[2],(0,0,1,0))[:,:,:-1],F.pad(g[3],(0,0,0,1))[:,:,1:],g[4]],1); return x+s.b(z)
add("vd_s2mlp","block",lambda:(ShiftMLP(10),(R(2,10,7,9,requires_grad=True),)),True)
add("vd_s2mlp_h","block",H(lambda:(ShiftMLP(5),(R(2,5,12,9,requires_grad=True),)),HF),True)
class PoolF(nn.Module):
    def __init__(s,c): super().__init__(); s.n=nn.GroupNorm(1,c); s.l1=P(c,scale=.1); s.m=nn.GroupNorm(1,c); s.a=C2(c,3*c,1); s.b=C2(3*c,c,1); s.r=P(c,scale=1)
    def forward(s,x):
        y=s.n(x); x=x*s.r[:,None,None]+s.l1[:,None,None]*(F.avg_pool2d(y,3,1,1,count_include_pad=False)-y); h=s.a(s.m(x)); return x+s.b(.8944*F.relu(h)**2-.4472)
add("vd_poolformer","block",lambda:(PoolF(7),(R(2,7,9,12,requires_grad=True),)),True)
class DecoupHead(nn.Module):
    def __init__(s): super().__init__(); s.s=C2(6,10,1); s.c=C2(5,4,3,padding=1); s.r=C2(5,5,3,padding=1)
    def forward(s,x,t):
        a,b=F.silu(s.s(x)).chunk(2,1); c=s.c(a); r=s.r(b); ob=r[:,4:]; q=torch.sigmoid(c); foc=(q-t).abs().pow(2)*F.binary_cross_entropy_with_logits(c,t,reduction="none"); return foc.sum((1,2,3))/(t>.5).sum((1,2,3)).clamp(min=1).float(),(q*ob.sigmoid()).sqrt(),r[:,:4].exp().clamp(max=64)
add("vd_varifocal","loss",lambda:(DecoupHead(),(R(2,6,8,10,requires_grad=True),torch.rand(2,4,8,10).requires_grad_())),True)
class LRPool(nn.Module):
    def __init__(s): super().__init__(); s.c=C1(7,9,4,stride=2,padding=1,groups=1); s.k=C1(9,9,5,groups=9,padding=2)
    def forward(s,x): y=s.c(x); y=y/(1+.2*F.avg_pool1d(F.pad((y*y).transpose(1,2),(1,1)),3,1).transpose(1,2)).pow(.75); z=s.k(F.relu(y)); return F.max_pool1d(F.avg_pool1d(z,2,1),3,2)+x.mean((1,2),keepdim=True), (z>0).sum(2)
add("vd_lrn1","conv",lambda:(LRPool(),(R(3,7,38,requires_grad=True),)),True)
class TCNres(nn.Module):
    def __init__(s,i,o,d): super().__init__(); s.v=P(o,i,3); s.g=P(o,1,1,scale=1); s.c=C1(o,o,3,dilation=d); s.k=C1(i,o,1); s.d=d
    def forward(s,x,m):
        w=s.v*(s.g/(s.v.square().sum((1,2),keepdim=True)+1e-12).sqrt()); y=F.relu(F.conv1d(F.pad(x,(2*s.d,0)),w,dilation=s.d))*m; y=F.relu(s.c(F.pad(y,(2*s.d,0)))); y=F.relu(y+s.k(x))*m; l=m.sum(2).long().sub(1); return y.gather(2,l[...,None].expand(-1,y.shape[1],1)).squeeze(2), (y.sum(2)/m.sum(2))
add("vd_tcn_last","block",lambda:(TCNres(6,9,3),(R(3,6,27,requires_grad=True),(torch.arange(27)[None,None]<torch.tensor([27,19,8])[:,None,None]).float())),True)
class CTCconv(nn.Module):
    def __init__(s): super().__init__(); s.c=C1(9,14,5,stride=2,padding=2); s.n=nn.BatchNorm1d(14); s.o=C1(7,12,1)
    def forward(s,x,t): y=F.glu(s.n(s.c(x)),1); lp=F.log_softmax(s.o(y),1); return -lp.gather(1,t[:,None]).squeeze(1).masked_fill(t==0,0.).sum(1), lp.argmax(1), (lp.exp()*lp).sum(1).neg()
add("vd_framece","loss",lambda:(CTCconv(),(R(3,9,41,requires_grad=True),torch.randint(0,12,(3,21)))),True)
class HarmNoise(nn.Module):
    """source filter: harmonics by cumulative phase, then a convolution"""
    def __init__(s): super().__init__(); s.c=C1(5,4,3,padding=1); s.o=C1(4,3,7,padding=3)
    def forward(s,f0,n):
        h=torch.arange(1.,6).view(1,5,1); ph=2*math.pi*(f0*h/80).cumsum(2); uv=(f0>1).float(); y=.1*torch.sin(ph)*uv+n*(uv*.003+(1-uv)*.033); return F.tanhshrink(s.o(lrelu(s.c(y)))), uv
add("vd_sourcefilter","conv",lambda:(HarmNoise(),((R(2,1,66).abs()*3).requires_grad_(),R(2,5,66,requires_grad=True))),True)
class BigVGAN(nn.Module):
    """anti-aliased snakebeta: up, activate, low-pass down"""
    def __init__(s,c): super().__init__(); k=gk(6,1.)[None,None].repeat(c,1,1); s.register_buffer("k",k); s.a=P(c); s.b=P(c); s.c=C1(c,c,3,padding=1); s.n=c
    def forward(s,x): y=2*F.conv_transpose1d(s.c(x),s.k,stride=2,padding=2,groups=s.n); y=y+torch.sin(y*s.a.exp()[:,None]).square()/(s.b.exp()[:,None]+1e-9); return F.conv1d(F.pad(y,(2,3),mode="replicate"),s.k,stride=2,groups=s.n)[...,:x.shape[2]]+x
add("vd_aasnake","block",lambda:(BigVGAN(7),(R(2,7,37,requires_grad=True),)),True)
add("vd_aasnake_h","block",H(lambda:(BigVGAN(5),(R(3,5,46,requires_grad=True),)),HF),True)
class PeriodD(nn.Module):
    def __init__(s,p): super().__init__(); s.p=p; s.a=C2(1,6,(5,1),stride=(3,1),padding=(2,0)); s.b=C2(6,9,(5,1),stride=(3,1),padding=(2,0)); s.o=C2(9,1,(3,1),padding=(1,0))
    def forward(s,r,f):
        n,_,t=r.shape; x=F.pad(torch.cat([r,f]),(0,(-t)%s.p),mode="reflect"); x=x.view(2*n,1,-1,s.p); l=0
        for c in(s.a,s.b): x=lrelu(c(x)); a,b=x.chunk(2); l=l+(a-b).abs().mean((1,2,3))
        a,b=s.o(x).flatten(1).chunk(2); return ((1-a)**2).mean(1)+(b**2).mean(1), 2*l
add("vd_periodd","loss",lambda:(PeriodD(5),(R(2,1,103,requires_grad=True),R(2,1,103,requires_grad=True))),True)
fn("vd_int_roi_mask","conv",lambda c,x,lab:(lambda y:torch.stack([(y*(lab==k)[:,None]).sum((2,3))/((lab==k).sum((1,2)).clamp(min=1))[:,None] for k in range(4)],1)-y.mean((2,3))[:,None])(c(x)),(2,5,11,12),ri(4,2,11,12),layers=lambda:(C2(5,8,3,padding=1),),train=True)
fn("vd_proto_margin","loss",lambda c,x,lab:(lambda e,o:(lambda mu:(F.relu((torch.einsum("kc,nkp->ncp",mu,o)-e).norm(dim=1)-.5).square().mean(),F.relu(3-(mu[:,None]-mu[None]+1e-6).norm(dim=2)).square().triu(1).sum()))(torch.einsum("ncp,nkp->kc",e,o)/o.sum((0,2)).clamp(min=1)[:,None]))(c(x).flatten(2),F.one_hot(lab.flatten(1),4).mT.float()),(2,5,9,10),ri(4,2,9,10),layers=lambda:(C2(5,6,3,padding=1),),train=True)
fn("vd_tr2_overlap_norm","conv",lambda c,x:(lambda y:y/F.conv_transpose2d(torch.ones_like(x[:,:1]),torch.ones(1,1,4,5),stride=(2,3),padding=(1,1)).clamp(min=1)-y.amin((2,3),keepdim=True))(c(x)),(2,5,7,6),layers=lambda:(T2(5,8,(4,5),stride=(2,3),padding=1),),train=True)
fn("vd_fold_recon","conv",lambda c,x:(lambda p:F.fold(p*p.sigmoid(),(10,13),3,padding=1)/9-x)(c(F.unfold(x,3,padding=1))),(2,3,10,13),layers=lambda:(C1(27,27,1,groups=3),),train=True)
fn("vd_slice_inputs","conv",lambda c,x:(lambda y:torch.addcmul(y,x[:,5:9,1:-1,2:],y.flip(1),value=-.5).clamp_min(-1.))(c(x[:,1:5,1:-1,2:])),(2,9,12,13),layers=lambda:(C2(4,4,(1,3),padding=(0,1)),),train=True)
fn("vd_mode_ch_stats5","conv",lambda c,x:(lambda y:(lambda m,s:((y-m)/s).pow(3).mean((2,3,4)),)[0](y.mean((2,3,4),keepdim=True),(y.var((2,3,4),keepdim=True)+1e-5).sqrt()))(F.hardsigmoid(c(x))*3),(2,4,4,6,7),layers=lambda:(T3(4,6,(3,1,2),padding=(1,0,0),groups=2),),train=True)
