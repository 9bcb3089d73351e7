"""1D and 3D networks: audio, video, GANs, diffusion, with losses."""
from written_base import *
# ---- 1D networks
fn("aud_wavenet_gate","conv",lambda c,x:(lambda a,b:torch.tanh(a)*torch.sigmoid(b))(*c(F.pad(x,(4,0))).chunk(2,1)),(2,18,75),layers=lambda:(nn.Conv1d(18,44,3,dilation=2),),train=True)
class WNLayer(nn.Module):
    def __init__(s,c,h,d):
        super().__init__(); s.d=d; s.dil=nn.Conv1d(c,2*h,2,dilation=d); s.res=nn.Conv1d(h,c,1); s.skip=nn.Conv1d(h,2*c,1); s.cond=nn.Conv1d(11,2*h,1,bias=False)
    def forward(s,x,c):
        y=s.dil(F.pad(x,(s.d,0)))+s.cond(c); n=y.shape[1]//2
        z=y[:,:n].tanh()*y[:,n:].sigmoid()
        return (x+s.res(z))*0.7071067811865476,s.skip(z)
add("aud_wn_layer","block",lambda:(WNLayer(14,22,4),(R(3,14,61,requires_grad=True),R(3,11,61,requires_grad=True))),True)
class DiffWaveBlk(nn.Module):
    def __init__(s,c,d): super().__init__(); s.p=nn.Linear(37,c); s.c=nn.Conv1d(c,2*c,3,padding=d,dilation=d); s.o=nn.Conv1d(c,2*c,1)
    def forward(s,x,t):
        y=s.c(x+s.p(t).unsqueeze(-1)); g,f=torch.chunk(y,2,dim=1)
        y=s.o(torch.sigmoid(g)*torch.tanh(f)); r,k=torch.chunk(y,2,dim=1)
        return (x+r)/math.sqrt(2.0),k
add("aud_diffwave","block",lambda:(DiffWaveBlk(20,3),(R(2,20,83,requires_grad=True),R(2,37,requires_grad=True))),True)
class TCN(nn.Module):
    def __init__(s,i,o,k,d):
        super().__init__(); s.c1=nn.Conv1d(i,o,k,padding=(k-1)*d,dilation=d); s.c2=nn.Conv1d(o,o,k,padding=(k-1)*d,dilation=d); s.ch=(k-1)*d; s.down=nn.Conv1d(i,o,1)
    def forward(s,x):
        h=F.relu(s.c1(x)[:,:,:-s.ch].contiguous()); h=F.relu(s.c2(h)[:,:,:-s.ch])
        return F.relu(h+s.down(x))
add("aud_tcn","block",lambda:(TCN(13,26,3,2),(R(4,13,57,requires_grad=True),)),True)
def snake(x,a): return x+(a+1e-9).reciprocal()*torch.sin(x*a).pow(2)
fn("aud_snake","pointwise",lambda a,x:snake(x,a),(3,21,119),layers=lambda:(P(1,21,1,scale=1.),),train=True)
fn("aud_snake_exp","pointwise",lambda la,lb,x:x+(1.0/(torch.exp(lb)[None,:,None]+1e-9))*torch.sin(x*torch.exp(la)[None,:,None])**2,(2,34,77),layers=lambda:(P(34),P(34)),train=True)
fn("aud_snake_conv","conv",lambda a,c,x:x+c(snake(x,a)),(2,17,90),layers=lambda:(P(1,17,1,scale=1.),nn.Conv1d(17,17,7,padding=9,dilation=3)),train=True)
fn("aud_enc_strided_gelu","conv",lambda c,g,x:F.gelu(g(c(x))),(2,3,203),layers=lambda:(nn.Conv1d(3,24,10,stride=5,bias=False),nn.GroupNorm(24,24)),train=True)
class W2VLayer(nn.Module):
    def __init__(s,i,o,k,st): super().__init__(); s.c=nn.Conv1d(i,o,k,st,bias=False); s.n=nn.LayerNorm(o)
    def forward(s,x): return F.gelu(s.n(s.c(x).transpose(-2,-1)).transpose(-2,-1))
add("aud_w2v_layer","block",lambda:(W2VLayer(12,30,3,2),(R(2,12,101,requires_grad=True),)),True)
class PosConv(nn.Module):
    def __init__(s,c,k,g): super().__init__(); s.c=nn.Conv1d(c,c,k,padding=k//2,groups=g); s.n=nn.LayerNorm(c)
    def forward(s,x): y=F.gelu(s.c(x.transpose(1,2))[...,:-1]); return s.n(x+y.transpose(1,2))
add("aud_posconv","block",lambda:(PosConv(24,8,4),(R(3,35,24,requires_grad=True),)),True)
class ConfConv(nn.Module):
    def __init__(s,d,k):
        super().__init__(); s.ln=nn.LayerNorm(d); s.p1=nn.Conv1d(d,2*d,1); s.dw=nn.Conv1d(d,d,k,padding=(k-1)//2,groups=d); s.bn=nn.BatchNorm1d(d); s.p2=nn.Conv1d(d,d,1)
    def forward(s,x):
        y=s.ln(x).transpose(1,2); y=F.glu(s.p1(y),dim=1); y=F.silu(s.bn(s.dw(y)))
        return x+s.p2(y).transpose(1,2)
add("aud_conformer_conv","block",lambda:(ConfConv(28,9),(R(2,47,28,requires_grad=True),)),True)
class ConfFF(nn.Module):
    def __init__(s,d): super().__init__(); s.n=nn.LayerNorm(d,eps=1e-3); s.a=nn.Linear(d,4*d); s.b=nn.Linear(4*d,d)
    def forward(s,x): h=s.a(s.n(x)); return x+0.5*s.b(h*torch.sigmoid(h))
add("aud_conformer_ff","block",lambda:(ConfFF(26),(R(3,31,26,requires_grad=True),)),True)
fn("aud_glu_grouped","conv",lambda c,x:F.glu(c(x),dim=-2)*math.sqrt(0.5)+x,(2,15,66),layers=lambda:(nn.Conv1d(15,30,5,padding=2,groups=3),),train=True)
class CTasBlock(nn.Module):
    def __init__(s,b,h,d):
        super().__init__(); s.i=nn.Conv1d(b,h,1); s.a1=nn.PReLU(); s.n1=nn.GroupNorm(1,h,eps=1e-8); s.dw=nn.Conv1d(h,h,3,padding=d,dilation=d,groups=h); s.a2=nn.PReLU(); s.n2=nn.GroupNorm(1,h,eps=1e-8); s.r=nn.Conv1d(h,b,1); s.s=nn.Conv1d(h,b+1,1)
    def forward(s,x): y=s.n1(s.a1(s.i(x))); y=s.n2(s.a2(s.dw(y))); return x+s.r(y),s.s(y)
add("aud_convtasnet","block",lambda:(CTasBlock(14,27,4),(R(2,14,73,requires_grad=True),)),True)
def cln(x,g,b,eps=1e-8):
    n=torch.arange(1,x.shape[-1]+1,device=x.device,dtype=x.dtype)*x.shape[1]
    s=torch.cumsum(x.sum(1),-1); q=torch.cumsum(x.pow(2).sum(1),-1); m=s/n; v=(q-2*m*s)/n+m.pow(2)
    return g*(x-m[:,None])/(v[:,None]+eps).sqrt()+b
fn("aud_cum_layernorm","scan",lambda g,b,x:cln(x,g,b),(3,19,71),layers=lambda:(P(19,1),P(19,1)),train=True)
fn("aud_cum_instnorm","scan",lambda x:(lambda m:(x-m)/(torch.sqrt(torch.cumsum((x-m)**2,2)/torch.arange(1,x.shape[2]+1)[:,None])+1e-5))(torch.cumsum(x,2)/torch.arange(1,x.shape[2]+1)[:,None]),(2,5,43,9))
fn("aud_gln","norm",lambda g,b,x:(lambda m:g*(x-m)/torch.sqrt(((x-m)**2).mean((1,2),keepdim=True)+1e-8)+b)(x.mean(dim=(1,2),keepdim=True)),(4,22,65),layers=lambda:(P(1,22,1),P(1,22,1)),train=True)
fn("aud_preemph","pointwise",lambda x:torch.cat([x[:,:1],x[:,1:]-0.97*x[:,:-1]],dim=1),(5,243),train=True)
fn("aud_preemph_frames","product",lambda w,f,x:torch.log(torch.clamp((F.pad(x,(1,0))[...,1:]-0.95*F.pad(x,(1,0))[...,:-1]).unfold(-1,50,20)*w@f,min=1e-5)),(3,290),layers=lambda:(torch.hann_window(50),torch.rand(50,18)))
fn("aud_envelope","scan",lambda x:(lambda k:torch.cumsum(x.abs()*torch.pow(0.98,-k),-1)*torch.pow(0.98,k)*0.02)(torch.arange(x.shape[-1],dtype=torch.float32)),(6,117))
fn("aud_movavg_cumsum","scan",lambda x:(lambda c:(c[...,9:]-c[...,:-9])/9.0)(torch.cumsum(F.pad(x,(9,0)),-1)),(4,13,98),train=True)
fn("aud_expdecay","reduction",lambda x,lam:(x*torch.exp(-F.softplus(lam)[:,None]*torch.arange(x.shape[-1]-1,-1,-1,dtype=x.dtype))).sum(-1),(5,14,87),(14,),train=True)
fn("aud_phase_osc","scan",lambda f0,amp:(torch.sin(2*math.pi*torch.cumsum(f0[...,None]*torch.arange(1,8)/16000.0,1))*F.softmax(amp,-1)).sum(-1),(3,151),(3,151,7))
class HarmOsc(nn.Module):
    def __init__(s,h): super().__init__(); s.h=h; s.lin=nn.Linear(h+1,1)
    def forward(s,f0):
        f=f0.unsqueeze(-1)*torch.arange(1,s.h+2,device=f0.device); rad=(f/44.1)%1.0; uv=(f0>0.1).float()[...,None]
        w=torch.sin(torch.cumsum(rad,dim=1)*2*math.pi)*0.1*uv+(1-uv)*0.003
        return torch.tanh(s.lin(w)),uv
add("aud_harmosc_nsf","scan",lambda:(HarmOsc(8),(R(2,163),)))
fn("aud_beat_phase","scan",lambda bpm:(lambda p:((p-torch.floor(p)),torch.cos(2*math.pi*p),(p.floor()%4==0)))(torch.cumsum(F.softplus(bpm)*120/60/86.13,dim=-1)),(7,129))
fn("aud_mel_log","product",lambda fb,x:torch.log10(torch.clamp(fb@x.pow(2),min=1e-10)),(2,65,57),layers=lambda:(torch.rand(23,65),))
fn("aud_whisper_logmel","product",lambda fb,x:(lambda l:(torch.maximum(l,l.amax((-2,-1),keepdim=True)-8.0)+4.0)/4.0)((fb@(x[...,:-1]**2)).clamp(min=1e-10).log10()),(2,49,74),layers=lambda:(torch.rand(20,49),))
fn("aud_mel_db_topdb","product",lambda fb,re,im:(lambda d:torch.max(d,(d.max()-80.0)))(10.0*torch.log10(torch.clamp(torch.matmul((re*re+im*im).transpose(1,2),fb),min=1e-10))),(3,45,52),(3,45,52),layers=lambda:(torch.rand(45,16),))
fn("aud_pcen","pointwise",lambda a,d,r,e,s:(e/(1e-6+s)**a.clamp(max=1.0)[:,None]+d[:,None])**(1/r.clamp(min=1.)[:,None])-d[:,None]**(1/r.clamp(min=1.)[:,None]),ru(2,27,64),ru(2,27,64),layers=lambda:(nn.Parameter(torch.rand(27)),nn.Parameter(torch.rand(27)+1),nn.Parameter(torch.rand(27)+1)),train=True)
fn("aud_cmvn","norm",lambda x:(x-x.mean(1,keepdim=True))/(x.std(1,keepdim=True)+1e-5),(4,63,26),train=True)
fn("aud_cmvn_masked","norm",lambda x,m:(lambda n,mu:(x-mu)*m/torch.sqrt((((x-mu)*m)**2).sum(1,keepdim=True)/n+1e-8))(m.sum(1,keepdim=True).clamp_min(1.),(x*m).sum(1,keepdim=True)/m.sum(1,keepdim=True).clamp_min(1.)),(3,55,18),lambda:(torch.rand(3,55,1)<.8).float())
fn("aud_spectral_conv","loss",lambda p,t:torch.norm(t-p,p="fro")/torch.norm(t,p="fro"),(3,41,37),(3,41,37),train=True)
fn("aud_stft_mag_loss","loss",lambda p,t:(lambda a,b:((b-a).pow(2).sum((1,2)).sqrt()/b.pow(2).sum((1,2)).sqrt()).mean()+F.l1_loss(a.log(),b.log()))(torch.sqrt(p[...,0]**2+p[...,1]**2+1e-7),torch.sqrt(torch.clamp(t[...,0]**2+t[...,1]**2,min=1e-7))),(3,29,33,2),(3,29,33,2),train=True)
fn("aud_sisnr","loss",lambda e,s:(lambda e,s:(lambda t:-(10*torch.log10(t.pow(2).sum(-1)/((e-t).pow(2).sum(-1)+1e-8)+1e-8)).mean())((e*s).sum(-1,keepdim=True)*s/(s.pow(2).sum(-1,keepdim=True)+1e-8)))(e-e.mean(-1,keepdim=True),s-s.mean(-1,keepdim=True)),(5,201),(5,201),train=True)
fn("aud_pit_sisdr","loss",lambda e,s:(lambda al:(10*torch.log10((al[...,None]*s[:,None]).pow(2).sum(-1)/((al[...,None]*s[:,None]-e[:,:,None]).pow(2).sum(-1)+1e-8))).amax(2).mean(1))(torch.einsum("bit,bjt->bij",e,s)/s.pow(2).sum(-1)[:,None]),(2,3,110),(2,3,110),train=True)
# ---- recurrent cells by hand
class GRUc(nn.Module):
    def __init__(s,i,h): super().__init__(); s.w=nn.Linear(i,3*h); s.u=nn.Linear(h,3*h)
    def forward(s,x,h):
        xr,xz,xn=s.w(x).chunk(3,-1); hr,hz,hn=s.u(h).chunk(3,-1)
        r=torch.sigmoid(xr+hr); z=torch.sigmoid(xz+hz); n=torch.tanh(xn+r*hn); return (1-z)*n+z*h
add("aud_gru_cell","product",lambda:(GRUc(29,22),(R(14,29,requires_grad=True),R(14,22,requires_grad=True))),True)
class LSTMc(nn.Module):
    def __init__(s,i,h): super().__init__(); s.l=nn.Linear(i+h,4*h)
    def forward(s,x,h,c):
        i,f,g,o=torch.split(s.l(torch.cat((x,h),1)),h.size(1),dim=1)
        c=torch.sigmoid(f+1.0)*c+torch.sigmoid(i)*torch.tanh(g); h=torch.sigmoid(o)*c.tanh(); return h,c
add("aud_lstm_cell","product",lambda:(LSTMc(19,26),(R(17,19,requires_grad=True),R(17,26,requires_grad=True),R(17,26,requires_grad=True))),True)
class LNLSTM(nn.Module):
    def __init__(s,i,h): super().__init__(); s.w=nn.Linear(i,4*h,bias=False); s.u=nn.Linear(h,4*h,bias=False); s.n=nn.LayerNorm(4*h); s.nc=nn.LayerNorm(h)
    def forward(s,x,h,c):
        g=s.n(s.w(x)+s.u(h)); i,f,o=g[:,:3*h.shape[1]].sigmoid().chunk(3,1); c=f*c+i*torch.tanh(g[:,3*h.shape[1]:]); c2=s.nc(c)
        return o*torch.tanh(c2),c
add("aud_lnlstm_peek","block",lambda:(LNLSTM(15,20),(R(11,15,requires_grad=True),R(11,20,requires_grad=True),R(11,20,requires_grad=True))),True)
class SRUc(nn.Module):
    def __init__(s,d): super().__init__(); s.w=nn.Linear(d,3*d,bias=False); s.v=P(2,d); s.b=P(2,d)
    def forward(s,x,c):
        u=s.w(x); x1,fu,ru_=u.view(*x.shape[:-1],3,-1).unbind(-2)
        f=torch.sigmoid(fu+s.v[0]*c+s.b[0]); c=f*c+(1-f)*x1; r=torch.sigmoid(ru_+s.v[1]*c+s.b[1]); return r*c+(1-r)*x*1.732,c
add("aud_sru_step","product",lambda:(SRUc(33),(R(13,33,requires_grad=True),R(13,33,requires_grad=True))),True)
class QRNN(nn.Module):
    def __init__(s,i,h): super().__init__(); s.c=nn.Conv1d(i,3*h,2)
    def forward(s,x,c):
        z,f,o=s.c(F.pad(x,(1,0))).chunk(3,1); z=z.tanh(); f=f.sigmoid(); o=o.sigmoid()
        c=f[...,0]*c+(1-f[...,0])*z[...,0]; c2=f[...,1]*c+(1-f[...,1])*z[...,1]; return o[...,1]*c2,(1-f)*z*o
add("aud_qrnn","conv",lambda:(QRNN(12,21),(R(4,12,38,requires_grad=True),R(4,21,requires_grad=True))),True)
fn("aud_mgu","product",lambda lf,lh,x,h:(lambda f:(1-f)*h+f*torch.tanh(lh(torch.cat([x,f*h],-1))))(torch.sigmoid(lf(torch.cat([x,h],-1)))),(9,17),(9,25),layers=lambda:(nn.Linear(42,25),nn.Linear(42,25)),train=True)
fn("aud_ligru","product",lambda w,u,bn,x,h:(lambda at,zt:zt.sigmoid()*h+(1-zt.sigmoid())*torch.relu(at))(*(bn(w(x))+u(h)).chunk(2,1)),(12,23),(12,18),layers=lambda:(nn.Linear(23,36,bias=False),nn.Linear(18,36,bias=False),nn.BatchNorm1d(36)),train=True)
class CLSTM(nn.Module):
    def __init__(s,i,h,k): super().__init__(); s.c=nn.Conv2d(i+h,4*h,k,padding=k//2); s.pi=P(1,h,1,1)
    def forward(s,x,h,c):
        i,f,o,g=s.c(torch.cat([x,h],1)).chunk(4,1); c=torch.sigmoid(f)*c+torch.sigmoid(i+s.pi*c)*torch.tanh(g); return torch.sigmoid(o)*torch.tanh(c),c
add("aud_convlstm","conv",lambda:(CLSTM(5,9,3),(R(2,5,14,17,requires_grad=True),R(2,9,14,17,requires_grad=True),R(2,9,14,17,requires_grad=True))),True)
class CGRU(nn.Module):
    def __init__(s,i,h): super().__init__(); s.g=nn.Conv2d(i+h,2*h,(1,5),padding=(0,2)); s.q=nn.Conv2d(i+h,h,(5,1),padding=(2,0)); s.h=h
    def forward(s,h,x):
        z,r=torch.sigmoid(s.g(torch.cat((h,x),1))).split(s.h,1); q=torch.tanh(s.q(torch.cat((r*h,x),dim=1))); return (1-z)*h+z*q
add("aud_sepconvgru_raft","conv",lambda:(CGRU(7,12),(R(2,12,13,18,requires_grad=True),R(2,7,13,18,requires_grad=True))),True)
# ---- speaker
class ASP(nn.Module):
    def __init__(s,c,h): super().__init__(); s.a=nn.Conv1d(3*c,h,1); s.bn=nn.BatchNorm1d(h); s.b=nn.Conv1d(h,c,1)
    def forward(s,x):
        T=x.size(-1); g=torch.cat((x,x.mean(2,keepdim=True).expand(-1,-1,T),torch.sqrt(x.var(2,keepdim=True).clamp(min=1e-4)).expand(-1,-1,T)),1)
        w=F.softmax(s.b(torch.tanh(s.bn(F.relu(s.a(g))))),2); mu=(x*w).sum(2); sg=torch.sqrt((torch.sum((x**2)*w,2)-mu**2).clamp(min=1e-4)); return torch.cat((mu,sg),1)
add("aud_asp","block",lambda:(ASP(18,10),(R(3,18,53,requires_grad=True),)),True)
fn("aud_stats_pool","reduction",lambda x:torch.cat([x.mean(-1),x.std(-1,unbiased=False)],1),(6,31,78),train=True)
fn("aud_stats_pool_w","reduction",lambda x,w:(lambda a,m:torch.cat((m,(((x-m[...,None])**2*a).sum(-1)+1e-10).sqrt()),-1))(torch.softmax(w,-1)[:,None],(x*torch.softmax(w,-1)[:,None]).sum(-1)),(5,24,69),(5,69),train=True)
class AAM(nn.Module):
    def __init__(s,d,n,m,sc): super().__init__(); s.w=P(n,d); s.cm,s.sm,s.th,s.mm,s.s=math.cos(m),math.sin(m),math.cos(math.pi-m),math.sin(math.pi-m)*m,sc
    def forward(s,x,y):
        c=F.linear(F.normalize(x),F.normalize(s.w)); sn=torch.sqrt((1.0-c*c).clamp(0,1)); ph=c*s.cm-sn*s.sm; ph=torch.where(c-s.th>0,ph,c-s.mm)
        oh=F.one_hot(y,s.w.shape[0]).to(c.dtype); return F.cross_entropy((oh*ph+(1-oh)*c)*s.s,y)
add("aud_aam_softmax","loss",lambda:(AAM(24,37,0.2,30.0),(R(15,24,requires_grad=True),torch.randint(0,37,(15,)))),True)
fn("aud_am_softmax","loss",lambda w,x,y:F.cross_entropy(30*(F.normalize(x)@F.normalize(w,dim=0)-0.35*F.one_hot(y,41)),y),(13,20),ri(41,13),layers=lambda:(P(20,41),),train=True)
def ge2e(w,b,e):
    S,U,D=e.shape; e=F.normalize(e,dim=-1); c=e.mean(1); ex=(e.sum(1,keepdim=True)-e)/(U-1)
    s=torch.einsum("sud,kd->suk",e,F.normalize(c,dim=-1)); d=(e*F.normalize(ex,dim=-1)).sum(-1,keepdim=True)
    eye=torch.eye(S,dtype=torch.bool)[:,None]; s=torch.where(eye,d,s); s=w.clamp(min=1e-6)*s+b
    return (torch.logsumexp(s,-1)-(s*eye).sum(-1)).mean()
fn("aud_ge2e","loss",ge2e,(7,5,26),layers=lambda:(nn.Parameter(torch.tensor(10.)),nn.Parameter(torch.tensor(-5.))),train=True)
fn("aud_angular_proto","loss",lambda w,b,x:F.cross_entropy(F.cosine_similarity(x[:,0][:,None],x[:,1:].mean(1)[None],dim=-1)*w+b,torch.arange(x.shape[0])),(11,3,34),layers=lambda:(nn.Parameter(torch.tensor(8.)),nn.Parameter(torch.tensor(-3.))),train=True)
class SERes1d(nn.Module):
    def __init__(s,c,b): super().__init__(); s.a=nn.Conv1d(c,b,1); s.b=nn.Conv1d(b,c,1); s.c=nn.Conv1d(c,c,3,padding=2,dilation=2); s.n=nn.BatchNorm1d(c)
    def forward(s,x): y=s.n(F.relu(s.c(x))); return x+y*torch.sigmoid(s.b(F.relu(s.a(y.mean(2,keepdim=True)))))
add("aud_ecapa_se","block",lambda:(SERes1d(22,9),(R(3,22,49,requires_grad=True),)),True)
class Res2(nn.Module):
    def __init__(s,c,n): super().__init__(); s.n=n; s.cs=nn.ModuleList(nn.Conv1d(c//n,c//n,3,padding=3,dilation=3) for _ in range(n-1))
    def forward(s,x):
        o=[]; 
        for i,p in enumerate(torch.chunk(x,s.n,1)): o.append(p if i==0 else F.relu(s.cs[i-1](p if i==1 else p+o[-1])))
        return torch.cat(o,1)
add("aud_res2","block",lambda:(Res2(28,4),(R(2,28,58,requires_grad=True),)),True)
fn("aud_ctc_head","product",lambda n,l,x:F.log_softmax(l(F.relu(n(x))),-1).transpose(0,1),(3,36,25),layers=lambda:(nn.LayerNorm(25),nn.Linear(25,43)),train=True)
fn("aud_ctc_greedy","product",lambda l,x:(lambda p,i:(p.values,i,(i[:,1:]!=i[:,:-1])&(i[:,1:]!=0)))(torch.log_softmax(l(x),2).max(2),l(x).argmax(2)),(2,51,18),layers=lambda:(nn.Linear(18,30),))
fn("aud_ctc_entropy","loss",lambda x,m:(-(F.log_softmax(x,-1).exp()*F.log_softmax(x,-1)).sum(-1)*m).sum()/m.sum(),(4,39,28),lambda:(torch.rand(4,39)<.7).float(),train=False)
# ---- transposed
fn("aud_dcgan_up","conv",lambda c,b,x:F.relu(b(c(x)),inplace=False),(3,17,7,9),layers=lambda:(nn.ConvTranspose2d(17,14,4,2,1,bias=False),nn.BatchNorm2d(14)),train=True)
fn("aud_dcgan_head","conv",lambda c,x:(torch.tanh(c(x))+1)*127.5,(2,13,15,14),layers=lambda:(nn.ConvTranspose2d(13,3,4,2,1),),train=True)
fn("aud_dcgan_z","conv",lambda l,c,b,z:F.leaky_relu(b(c(F.relu(l(z)).view(-1,10,5,6))),0.2),(4,22),layers=lambda:(nn.Linear(22,300),nn.ConvTranspose2d(10,13,5,stride=2,padding=2,output_padding=1),nn.BatchNorm2d(13)),train=True)
fn("aud_dcgan_disc","conv",lambda a,b,n,x:torch.sigmoid(F.leaky_relu(n(b(F.leaky_relu(a(x),.2))),.2).mean((1,2,3))),(3,3,30,26),layers=lambda:(nn.Conv2d(3,12,4,2,1),nn.Conv2d(12,21,4,2,1,bias=False),nn.BatchNorm2d(21)),train=True)
fn("aud_ct1_hifi_up","conv",lambda c,x:c(F.leaky_relu(x,0.1)),(2,18,33),layers=lambda:(nn.ConvTranspose1d(18,9,8,4,padding=2),),train=True)
class MRF(nn.Module):
    def __init__(s,c): super().__init__(); s.up=nn.ConvTranspose1d(2*c,c,4,2,1); s.r=nn.ModuleList(nn.Conv1d(c,c,k,dilation=d,padding=(k-1)*d//2) for k,d in ((3,1),(7,1),(5,3))); s.post=nn.Conv1d(c,1,7,padding=3)
    def forward(s,x):
        x=s.up(F.leaky_relu(x,.1)); y=0
        for r in s.r: y=y+x+r(F.leaky_relu(x,.1))
        return torch.tanh(s.post(F.leaky_relu(y/len(s.r)))).squeeze(1)
add("aud_hifigan_mrf","block",lambda:(MRF(11),(R(2,22,36,requires_grad=True),)),True)
fn("aud_ct1_causal_crop","conv",lambda c,x:F.elu(c(x)[...,:-3]),(2,15,41),layers=lambda:(nn.ConvTranspose1d(15,10,6,stride=3),),train=True)
fn("aud_ct1_outpad_mish","conv",lambda c,x:F.mish(c(x)).clamp(-1.5,2.5)/3,(3,12,37),layers=lambda:(nn.ConvTranspose1d(12,17,5,stride=3,padding=1,output_padding=2,groups=1),))
fn("aud_ct1_depthwise","conv",lambda c,x:x.repeat_interleave(2,-1)*0.5+c(x),(2,20,45),layers=lambda:(nn.ConvTranspose1d(20,20,4,2,1,groups=20),),train=True)
fn("aud_ct2_lse","conv",lambda c,x:torch.logsumexp(c(x)+0.3,dim=1,keepdim=True),(2,11,13,10),layers=lambda:(nn.ConvTranspose2d(11,18,3,stride=2,padding=1,output_padding=1),),train=True)
fn("aud_ct2_softmax_min","conv",lambda c,b,x:torch.softmax(c(x)-b,dim=1).amin(dim=(2,3)),(2,9,12,15),layers=lambda:(nn.ConvTranspose2d(9,14,2,2),P(14,1,1)))
fn("aud_ct2_hardtanh_sum","conv",lambda c,x:F.hardtanh(c(x)*2.2,-0.8,1.3).sum(1).mean((-1,-2)),(3,10,9,14),layers=lambda:(nn.ConvTranspose2d(10,13,6,3,2,bias=True),),train=True)
fn("aud_ct2_gn_swish","conv",lambda c,g,x:F.silu(g(c(x)))+0.1,(2,8,11,13),layers=lambda:(nn.ConvTranspose2d(8,18,(3,4),(1,2),(1,1)),nn.GroupNorm(6,18)),train=True)
fn("aud_ct2_in_skipcat","conv",lambda c,n,x,k:torch.cat([F.relu(n(c(x))),k],1),(2,16,8,9),(2,7,16,18),layers=lambda:(nn.ConvTranspose2d(16,9,4,2,1),nn.InstanceNorm2d(9,affine=True)),train=True)
fn("aud_ct2_maxpool_tanh","conv",lambda c,x:torch.tanh(F.max_pool2d(c(x),3,stride=2,padding=1).mean((2,3),keepdim=True)),(2,7,14,11),layers=lambda:(nn.ConvTranspose2d(7,15,3,padding=1),),train=True)
fn("aud_ct3_bias_relu","conv",lambda c,b,x:F.relu(c(x)+b)/2.5,(1,6,5,7,8),layers=lambda:(nn.ConvTranspose3d(6,9,2,2,bias=False),P(9,1,1,1)),train=True)
fn("aud_ct3_vnet_up","conv",lambda c,n,p,x,k:torch.cat((p(n(c(x))),k),dim=1),(2,10,3,6,5),(2,5,6,12,10),layers=lambda:(nn.ConvTranspose3d(10,6,2,stride=2),nn.BatchNorm3d(6),nn.PReLU(6)),train=True)
fn("aud_ct3_clamp_div","conv",lambda c,x:torch.clamp(c(x),min=-0.4)/1.5-0.25,(2,5,4,6,7),layers=lambda:(nn.ConvTranspose3d(5,7,3,stride=2,padding=1,output_padding=1),))
fn("aud_ct3_softmax_swish","conv",lambda c,b,x:(lambda y:(torch.sigmoid(y)*y).amax(1))(F.softmax(c(x),dim=1)-b.view(1,-1,1,1,1)),(1,7,4,7,6),layers=lambda:(nn.ConvTranspose3d(7,12,(1,3,3),(1,2,2),(0,1,1)),P(12)),train=True)
fn("aud_ct3_ln_gelu_avg","conv",lambda c,w,n,x:F.gelu(F.avg_pool3d(n((c(x)+w).permute(0,2,3,4,1)).permute(0,4,1,2,3),2)),(2,6,3,5,6),layers=lambda:(nn.ConvTranspose3d(6,11,3,2,1,output_padding=(1,1,0)),P(1),nn.LayerNorm(11)),train=True)
fn("aud_ct3_two_pools","conv",lambda c,x:F.max_pool3d(F.max_pool3d(c(x),2),2).sum(1,keepdim=True),(1,5,5,8,9),layers=lambda:(nn.ConvTranspose3d(5,8,5,stride=1,padding=1),),train=True)
fn("aud_ct3_gap_scale","conv",lambda c,n,x:F.adaptive_avg_pool3d(n(c(x)*0.5),1).flatten(1),(2,4,4,6,5),layers=lambda:(nn.ConvTranspose3d(4,9,3,1),nn.BatchNorm3d(9)),train=True)
fn("aud_ct3_residual_chain","conv",lambda c,b,x:(lambda y:((y+b)+y.detach())*y+y)(c(x)),(1,6,4,5,9),layers=lambda:(nn.ConvTranspose3d(6,8,3,2,1,1),P(8,1,1,1)))
# ---- 3D convs
fn("aud_c3_mean_tanh","conv",lambda c,x:torch.tanh(c(x).mean((2,3,4))*3),(2,4,9,13,11),layers=lambda:(nn.Conv3d(4,10,3,bias=False),),train=True)
fn("aud_c3_min_softmax","conv",lambda c,x:F.softmax(torch.min(c(x),dim=2).values,dim=1),(2,3,8,14,13),layers=lambda:(nn.Conv3d(3,12,3),),train=True)
fn("aud_c3_div_maxpool_bias","conv",lambda c,b,x:torch.sum(F.adaptive_avg_pool3d(F.max_pool3d(c(x)/2.0,2),1)+b,dim=1),(2,5,9,11,12),layers=lambda:(nn.Conv3d(5,9,3),P(9,1,1,1)),train=True)
fn("aud_c3_scale_sigmoid","conv",lambda c,w,b,x:torch.sigmoid(torch.tanh(c(x)*w)*b),(1,4,7,12,15),layers=lambda:(nn.Conv3d(4,11,(3,5,3)),P(11,1,1,1),P(11,1,1,1)))
fn("aud_c3_lse_relu","conv",lambda c,x:F.relu(torch.logsumexp(F.max_pool3d(c(x),2,2),dim=1,keepdim=True)),(2,3,10,12,9),layers=lambda:(nn.Conv3d(3,13,3,padding=1),),train=True)
fn("aud_c3_hswish_gn_mean","conv",lambda c,g,x:g(F.relu(F.hardswish(c(x)))).mean([2,3,4]),(2,3,7,9,12),layers=lambda:(nn.Conv3d(3,12,4),nn.GroupNorm(4,12)),train=True)
fn("aud_c3_leaky_add_clamp_gelu","conv",lambda c,b,x:F.gelu(torch.clamp(F.leaky_relu(c(x),0.2)+b,-1.0,1.0)),(1,6,6,13,10),layers=lambda:(nn.Conv3d(6,14,(1,3,3),padding=(0,1,1)),P(14,1,1,1)),train=True)
fn("aud_c3_softplus_max","conv",lambda c,x:F.softplus(c(x)).amax(1).sub(0.5),(2,5,5,9,14),layers=lambda:(nn.Conv3d(5,11,3,stride=(1,2,2),padding=1),),train=True)
class R21D(nn.Module):
    def __init__(s,i,m,o): super().__init__(); s.a=nn.Conv3d(i,m,(1,3,3),(1,2,2),(0,1,1),bias=False); s.n=nn.BatchNorm3d(m); s.b=nn.Conv3d(m,o,(3,1,1),padding=(1,0,0),bias=False); s.n2=nn.BatchNorm3d(o); s.d=nn.Conv3d(i,o,1,(1,2,2))
    def forward(s,x): return F.relu(s.n2(s.b(F.relu(s.n(s.a(x)))))+s.d(x))
add("aud_r2plus1d","block",lambda:(R21D(5,13,8),(R(2,5,5,14,11,requires_grad=True),)),True)
class X3D(nn.Module):
    def __init__(s,c,h): super().__init__(); s.a=nn.Conv3d(c,h,1,bias=False); s.n1=nn.BatchNorm3d(h); s.d=nn.Conv3d(h,h,3,padding=1,groups=h,bias=False); s.n2=nn.BatchNorm3d(h); s.f1=nn.Conv3d(h,6,1); s.f2=nn.Conv3d(6,h,1); s.o=nn.Conv3d(h,c,1,bias=False); s.n3=nn.BatchNorm3d(c)
    def forward(s,x): y=s.n2(s.d(F.relu(s.n1(s.a(x))))); y=y*s.f2(F.relu(s.f1(F.adaptive_avg_pool3d(y,1)))).sigmoid(); return F.relu(x+s.n3(s.o(F.silu(y))))
add("aud_x3d","block",lambda:(X3D(7,15),(R(2,7,4,9,10,requires_grad=True),)),True)
class UNet3(nn.Module):
    def __init__(s,c): super().__init__(); s.a=nn.Conv3d(2,c,3,padding=1); s.n=nn.InstanceNorm3d(c,affine=True); s.b=nn.Conv3d(c,2*c,3,padding=1); s.c=nn.Conv3d(3*c,3,1)
    def forward(s,x): e=F.leaky_relu(s.n(s.a(x)),1e-2); y=F.relu(s.b(F.max_pool3d(e,2))); y=F.interpolate(y,scale_factor=2,mode="nearest"); return s.c(torch.cat([e,y],1)).softmax(1)
add("aud_unet3d","block",lambda:(UNet3(6),(R(1,2,6,10,12,requires_grad=True),)),True)
fn("aud_c3_grouped_channelshuffle","conv",lambda c,n,x:(lambda y:F.relu(n(y)).view(y.shape[0],3,-1,*y.shape[2:]).transpose(1,2).reshape_as(y))(c(x)),(2,9,4,8,7),layers=lambda:(nn.Conv3d(9,15,3,padding=1,groups=3),nn.BatchNorm3d(15)),train=True)
fn("aud_i3d_inception","conv",lambda a,b,c,x:torch.cat([F.relu(a(x)),F.relu(b(x)),F.relu(c(F.max_pool3d(x,3,1,1)))],1),(1,8,5,9,10),layers=lambda:(nn.Conv3d(8,6,1),nn.Conv3d(8,9,3,padding=1),nn.Conv3d(8,5,1)),train=True)
fn("aud_csn_frames_headmean","product",lambda l,x:l(x.mean((-1,-2))).mean(1),(3,6,27,7,5),layers=lambda:(nn.Linear(27,19),),train=True)
fn("aud_dice3d","loss",lambda p,t:1-((2*(p.sigmoid()*t).sum((2,3,4))+1.)/(p.sigmoid().pow(2).sum((2,3,4))+t.sum((2,3,4))+1.)).mean(),(2,3,7,11,10),lambda:(torch.rand(2,3,7,11,10)<.3).float())
fn("aud_dice_ce3d","loss",lambda x,y:(lambda p,o:F.cross_entropy(x,y)+(1-(2*(p*o).sum((0,2,3,4))+1e-5)/((p+o).sum((0,2,3,4))+1e-5))[1:].mean())(x.softmax(1),F.one_hot(y,4).permute(0,4,1,2,3).float()),(2,4,6,9,11),ri(4,2,6,9,11),train=True)
fn("aud_tversky_focal","loss",lambda x,t:(lambda p:(1-((p*t).flatten(1).sum(1)+1)/((p*t).flatten(1).sum(1)+0.3*((1-t)*p).flatten(1).sum(1)+0.7*(t*(1-p)).flatten(1).sum(1)+1))**0.75)(torch.sigmoid(x)).mean(),(3,1,8,12,9),lambda:(torch.rand(3,1,8,12,9)<.2).float())
fn("aud_ncc_window","loss",lambda a,b:(lambda f:(lambda ma,mb:-((f(a*b)-ma*mb)**2/((f(a*a)-ma**2)*(f(b*b)-mb**2)+1e-3)).mean())(f(a),f(b)))(lambda z:F.avg_pool3d(z,5,1,2)),(1,2,9,12,11),(1,2,9,12,11),train=True)
fn("aud_smooth3d_grad","loss",lambda f:((f[:,:,1:]-f[:,:,:-1])**2).mean()+((f[:,:,:,1:]-f[:,:,:,:-1])**2).mean()+((f[...,1:]-f[...,:-1])**2).mean(),(2,3,7,10,13),train=True)
fn("aud_jacdet","pointwise",lambda f:(lambda g,h:((g[:,0]+1)*(h[:,1]+1)-g[:,1]*h[:,0]))(f[:,:,1:,:-1]-f[:,:,:-1,:-1],f[:,:,:-1,1:]-f[:,:,:-1,:-1]),(3,2,27,34),train=True)
fn("aud_ct_window","pointwise",lambda v:((v*1024-40+200)/400).clamp(0,1).mul(2).sub(1),(2,9,21,18))
fn("aud_mip","reduction",lambda v:(v.amax(2),v.amin(3),v.mean(-1),torch.argmax(v,2)),(2,3,8,14,13))
fn("aud_seg_argmax_conf","reduction",lambda x:(lambda p:(p.argmax(1),p.max(1)[0],-(p*torch.log(p+1e-6)).sum(1)))(x.softmax(1)),(2,5,7,11,12))
# ---- pooling
fn("aud_pool1_overlap_two","pool",lambda x:F.avg_pool1d(F.max_pool1d(F.relu(x),3,2,1),5,2,2,count_include_pad=False),(3,14,133),train=True)
fn("aud_pool1_ceil","pool",lambda x:F.max_pool1d(x*x,4,3,ceil_mode=True)+1e-3,(4,11,102))
fn("aud_avg1_ceil_log","pool",lambda x:torch.log1p(F.avg_pool1d(x.abs(),7,stride=4,padding=3,ceil_mode=True)),(2,15,149))
fn("aud_pool3_pad_ceil","pool",lambda x:F.avg_pool3d(F.max_pool3d(x,(1,3,3),(1,2,2),(0,1,1)),(3,2,2),(2,2,2),(1,0,0),ceil_mode=True),(2,5,6,19,17),train=True)
fn("aud_pool3_max_minus_avg","pool",lambda x:F.max_pool3d(x,3,1,1)-F.avg_pool3d(x,3,1,1),(1,6,7,11,12),train=True)
fn("aud_adapt1","pool",lambda c,x:F.adaptive_avg_pool1d(F.silu(c(x)),6).flatten(1)@x.new_ones(66,3)*0.1,(3,8,72),layers=lambda:(nn.Conv1d(8,11,3,padding=1),),train=True)
fn("aud_adapt_maxmean","pool",lambda x:torch.cat([F.adaptive_max_pool1d(x,1),F.adaptive_avg_pool1d(x,1)],1).squeeze(-1),(4,26,91),train=True)
fn("aud_lp_pool","pool",lambda x:F.avg_pool1d(x.clamp(min=1e-6).pow(3.0),4,2).pow(1./3),(3,16,97),train=True)
fn("aud_gem3d","pool",lambda p,x:x.clamp(min=1e-6).pow(p).mean((2,3,4)).pow(1.0/p),(3,10,4,9,11),layers=lambda:(nn.Parameter(torch.tensor(3.)),),train=True)
fn("aud_softpool_time","pool",lambda x:F.avg_pool1d(x.exp()*x,2)/(F.avg_pool1d(x.exp(),2)+1e-8),(2,21,84),train=True)
fn("aud_up1_linear","conv",lambda c,x:F.leaky_relu(c(F.interpolate(x,scale_factor=2,mode="linear",align_corners=True)),.3),(2,13,39),layers=lambda:(nn.Conv1d(13,9,15,padding=7),),train=True)
fn("aud_waveunet_crop","conv",lambda c,x,s:torch.tanh(c(torch.cat([F.interpolate(x,size=s.shape[-1]-6,mode="nearest"),s[...,3:-3]],1))),(2,8,31),(2,5,69),layers=lambda:(nn.Conv1d(13,7,5),),train=True)
fn("aud_up3_trilinear","pointwise",lambda x,y:torch.sigmoid(F.interpolate(x,scale_factor=(1,2,2),mode="trilinear",align_corners=False)+y),(1,4,3,7,8),(1,4,3,14,16))
fn("aud_up_bilinear_flow","pointwise",lambda f:4.0*F.interpolate(f,scale_factor=2,mode="bilinear",align_corners=True),(2,2,17,22))
fn("aud_unpool_shift","pointwise",lambda x:F.interpolate(x,scale_factor=3)[...,1:-2]+F.pad(x,(2,2)).repeat(1,1,3)[...,:3*x.shape[-1]-3],(2,11,43))
# ---- modulation
class FiLM(nn.Module):
    def __init__(s,c,e): super().__init__(); s.c=nn.Conv2d(c,c,3,padding=1); s.n=nn.BatchNorm2d(c,affine=False); s.l=nn.Linear(e,2*c)
    def forward(s,x,e): g,b=s.l(e)[...,None,None].chunk(2,1); return x+F.relu((1+g)*s.n(s.c(x))+b)
add("aud_film","block",lambda:(FiLM(9,14),(R(3,9,13,15,requires_grad=True),R(3,14,requires_grad=True))),True)
fn("aud_tfilm","product",lambda l,x:(x.view(3,12,9,10)*l(F.max_pool1d(x,10).transpose(1,2)).transpose(1,2).unsqueeze(-1)).flatten(2),(3,12,90),layers=lambda:(nn.Linear(12,12),),train=True)
class AdaIN1(nn.Module):
    def __init__(s,c,e): super().__init__(); s.f=nn.Linear(e,2*c); s.n=nn.InstanceNorm1d(c); s.a=nn.Parameter(torch.ones(1,c,1)); s.v=nn.Conv1d(c,c,3,padding=1)
    def forward(s,x,st):
        h=s.f(st); h=h.view(h.size(0),h.size(1),1); g,b=torch.chunk(h,2,dim=1); y=(1+g)*s.n(x)+b
        return (x+s.v(y+(1/s.a)*(torch.sin(s.a*y)**2)))/math.sqrt(2)
add("aud_adain1d_snake","block",lambda:(AdaIN1(16,21),(R(3,16,50,requires_grad=True),R(3,21,requires_grad=True))),True)
fn("aud_adain_style","norm",lambda c,s:s.std((2,3),keepdim=True)*(c-c.mean((2,3),keepdim=True))/(c.std((2,3),keepdim=True)+1e-5)+s.mean((2,3),keepdim=True),(2,11,17,13),(2,11,14,19),train=True)
class SPADE(nn.Module):
    def __init__(s,c,k): super().__init__(); s.n=nn.InstanceNorm2d(c); s.sh=nn.Conv2d(k,12,3,padding=1); s.g=nn.Conv2d(12,c,3,padding=1); s.b=nn.Conv2d(12,c,3,padding=1)
    def forward(s,x,m): a=F.relu(s.sh(F.interpolate(m,size=x.shape[2:],mode="nearest"))); return F.leaky_relu(s.n(x)*(1+s.g(a))+s.b(a),2e-1)
add("aud_spade","block",lambda:(SPADE(10,5),(R(2,10,14,18,requires_grad=True),R(2,5,7,9,requires_grad=True))),True)
class ModConv(nn.Module):
    def __init__(s,i,o,k,z): super().__init__(); s.w=P(1,o,i,k,k,scale=1.); s.a=nn.Linear(z,i); s.sc=1/math.sqrt(i*k*k); s.nb=P(1); s.b=P(1,o,1,1)
    def forward(s,x,z,n):
        B,C,H,W=x.shape; w=s.sc*s.w*(s.a(z)+1).view(B,1,C,1,1); w=w*torch.rsqrt(w.pow(2).sum([2,3,4],keepdim=True)+1e-8)
        y=F.conv2d(x.reshape(1,B*C,H,W),w.view(-1,C,*w.shape[3:]),padding=1,groups=B).view(B,-1,H,W)
        return F.leaky_relu(y+s.nb*n+s.b,0.2)*math.sqrt(2)
add("aud_modconv","block",lambda:(ModConv(7,12,3,17),(R(3,7,13,11,requires_grad=True),R(3,17,requires_grad=True),R(3,1,13,11,requires_grad=True))),True)
fn("aud_modconv_act","conv",lambda a,c,x,z:(lambda st:F.leaky_relu(c(x*st[:,:,None,None])*torch.rsqrt((st[:,None]**2*c.weight.pow(2).sum((2,3))[None]).sum(-1)+1e-8)[:,:,None,None],.2)*1.4142)(a(z)+1),(2,9,15,12),(2,18),layers=lambda:(nn.Linear(18,9),nn.Conv2d(9,14,3,padding=1,bias=False)),train=True)
fn("aud_torgb_skip","conv",lambda a,w,x,z,k:torch.einsum("bchw,bc,oc->bohw",x,a(z)/math.sqrt(13),w)+F.interpolate(k,scale_factor=2,mode="nearest"),(2,13,16,12),(2,19),(2,3,8,6),layers=lambda:(nn.Linear(19,13),P(3,13)),train=True)
fn("aud_pixelnorm_map","product",lambda a,b,z:F.leaky_relu(b(F.leaky_relu(a(z*torch.rsqrt(z.pow(2).mean(1,keepdim=True)+1e-8)),.2)*2**.5),.2)*2**.5,(12,30),layers=lambda:(nn.Linear(30,42),nn.Linear(42,26)),train=True)
fn("aud_truncation","product",lambda l,wa,z:torch.lerp(wa,F.leaky_relu(l(z),.2),0.7).unsqueeze(1).repeat(1,5,1),(9,22),layers=lambda:(nn.Linear(22,31),P(31)))
def mbstd(x,g=4,f=1):
    N,C,H,W=x.shape; y=x.reshape(g,-1,f,C//f,H,W); y=y-y.mean(0); y=(y.square().mean(0)+1e-8).sqrt().mean([2,3,4]); y=y.reshape(-1,f,1,1).repeat(g,1,H,W); return torch.cat([x,y],1)
fn("aud_minibatch_std","reduction",mbstd,(8,14,7,9),train=True)
fn("aud_minibatch_std_conv","conv",lambda c,x:F.leaky_relu(c(mbstd(x,3,2)),.2),(6,12,9,10),layers=lambda:(nn.Conv2d(14,15,3,padding=1),),train=True)
fn("aud_minibatch_disc","product",lambda T,x:(lambda m:torch.cat([x,torch.exp(-(m[None]-m[:,None]).abs().sum(3)).sum(0)-1],1))((x@T).view(-1,7,5)),(12,26),layers=lambda:(P(26,35),),train=True)
# ---- GAN losses
fn("aud_hinge_d","loss",lambda r,f:F.relu(1.0-r).mean()+F.relu(1.0+f).mean(),(7,1,13,11),(7,1,13,11),train=True)
fn("aud_hinge_conv_multi","loss",lambda c,a,b:(F.relu(1-c(a))).mean((1,2))+(1+c(b)).clamp(min=0).mean((1,2)),(4,10,60),(4,10,60),layers=lambda:(nn.Conv1d(10,1,5),),train=True)
fn("aud_relativistic","loss",lambda r,f:(F.binary_cross_entropy_with_logits(r-f.mean(0,keepdim=True),torch.full_like(r,.9))+F.binary_cross_entropy_with_logits(f-r.mean(0,keepdim=True),torch.zeros_like(f)))/2,(14,1,6,9),(14,1,6,9),train=True)
fn("aud_rals","loss",lambda r,f:((r-f.mean()-1)**2).mean()+((f-r.mean()+1)**2).mean(),(9,57),(9,57),train=True)
fn("aud_wgan_gp_pieces","loss",lambda r,f,g:f.mean()-r.mean()+10.0*((g.flatten(1).norm(2,dim=1)-1)**2).mean()+1e-3*r.square().mean(),(6,1),(6,1),(6,3,17,14),train=True)
fn("aud_gp_interp","pointwise",lambda a,x,y:(lambda i:(i,(x-y)*a[:,None,None,None]))(a.view(-1,1,1,1)*x+(1-a).view(-1,1,1,1)*y),ru(5),(5,3,14,17),(5,3,14,17))
fn("aud_dragan_norm","loss",lambda g:(torch.sqrt(torch.sum(g.reshape(g.size(0),-1)**2,dim=1)+1e-12)-1.0).clamp(min=0).pow(2).sum()*0.5,(7,2,15,18),train=True)
fn("aud_r1_nonsat","loss",lambda f,g:F.softplus(-f).mean()+0.5*10*g.pow(2).reshape(g.shape[0],-1).sum(1).mean(),(8,1),(8,3,12,13),train=True)
fn("aud_lsgan_hifi","loss",lambda a,b,fa,fb:((1-a)**2).mean()+(b**2).mean()+2*(fa-fb).abs().mean(),(3,41),(3,41),(3,12,33),(3,12,33),train=True)
fn("aud_feature_match","loss",lambda a,b,c,d:(F.l1_loss(a,b.detach())/b.abs().mean()+F.l1_loss(c,d.detach())/d.abs().mean())/2,(2,9,70),(2,9,70),(2,14,29),(2,14,29),train=True)
fn("aud_mpd_fold","conv",lambda c,d,x:(lambda y:(d(y).flatten(1),y))(F.leaky_relu(c(F.pad(x,(0,2)).view(3,1,-1,5)),0.1)),(3,1,143),layers=lambda:(nn.Conv2d(1,14,(5,1),(3,1),padding=(2,0)),nn.Conv2d(14,1,(3,1),padding=(1,0))),train=True)
fn("aud_msd_grouped","conv",lambda c,d,x:d(F.leaky_relu(c(F.avg_pool1d(x,4,2,padding=2)),.1)),(2,6,150),layers=lambda:(nn.Conv1d(6,18,11,stride=3,groups=3,padding=5),nn.Conv1d(18,2,3,padding=1)),train=True)
class ProjD(nn.Module):
    def __init__(s,c,n): super().__init__(); s.a=nn.Conv2d(3,c,3,padding=1); s.b=nn.Conv2d(c,c,3,padding=1); s.k=nn.Conv2d(3,c,1); s.l=nn.Linear(c,1); s.e=nn.Embedding(n,c)
    def forward(s,x,y): h=F.avg_pool2d(s.b(F.relu(s.a(x))),2)+s.k(F.avg_pool2d(x,2)); h=F.relu(h).sum((2,3)); return s.l(h)+(s.e(y)*h).sum(1,keepdim=True)
add("aud_projection_disc","block",lambda:(ProjD(15,10),(R(3,3,14,18,requires_grad=True),torch.randint(0,10,(3,)))),True)
class CBN(nn.Module):
    def __init__(s,c,n): super().__init__(); s.b=nn.BatchNorm2d(c,affine=False,eps=1e-4); s.g=nn.Embedding(n,c); s.h=nn.Embedding(n,c); s.c=nn.Conv2d(c,13,3,padding=1)
    def forward(s,x,y): o=s.b(x)*(1+s.g(y)[:,:,None,None])+s.h(y).view(-1,x.shape[1],1,1); return s.c(F.interpolate(F.relu(o),scale_factor=2))
add("aud_cbn_up","block",lambda:(CBN(11,6),(R(4,11,7,9,requires_grad=True),torch.randint(0,6,(4,)))),True)
fn("aud_sn_linear","product",lambda w,u,v,x:F.leaky_relu(x@(w/(u@w@v)).t(),.2),(14,29),layers=lambda:(P(23,29),F.normalize(R(23),dim=0),F.normalize(R(29),dim=0)),train=True)
fn("aud_weightnorm_conv1d","conv",lambda g,v,b,x:F.leaky_relu(F.conv1d(F.pad(x,(6,0)),g*v/v.norm(dim=(1,2),keepdim=True),b,dilation=3),.1),(2,13,64),layers=lambda:(P(17,1,1),P(17,13,3),P(17)),train=True)
fn("aud_weight_std_conv","conv",lambda w,n,x:n(F.conv2d(x,(w-w.mean((1,2,3),keepdim=True))/(w.std((1,2,3),keepdim=True)+1e-5),padding=1)).relu(),(2,7,14,13),layers=lambda:(P(12,7,3,3),nn.GroupNorm(3,12)),train=True)
# ---- diffusion
def temb(t,d,mp=10000.): f=torch.exp(-math.log(mp)*torch.arange(d//2,dtype=torch.float32)/(d//2)); a=t.float()[:,None]*f[None]; return torch.cat([a.cos(),a.sin()],-1)
fn("aud_time_emb","product",lambda a,b,t:b(F.silu(a(temb(t,30)))),ri(1000,17),layers=lambda:(nn.Linear(30,44),nn.Linear(44,26)))
fn("aud_fourier_feat","pointwise",lambda w,t:(lambda p:torch.cat([t[:,None],p.sin(),p.cos()],1))(t[:,None]*w[None]*2*math.pi),(23,),layers=lambda:(P(19,scale=16.),),train=True)
class DResBlk(nn.Module):
    def __init__(s,i,o,e): super().__init__(); s.n1=nn.GroupNorm(3,i); s.c1=nn.Conv2d(i,o,3,padding=1); s.e=nn.Linear(e,2*o); s.n2=nn.GroupNorm(5,o); s.c2=nn.Conv2d(o,o,3,padding=1); s.k=nn.Conv2d(i,o,1)
    def forward(s,x,t): h=s.c1(F.silu(s.n1(x))); sc,sh=s.e(F.silu(t))[:,:,None,None].chunk(2,dim=1); h=s.n2(h)*(1+sc)+sh; return s.k(x)+s.c2(F.silu(h))
add("aud_ddpm_resblk","block",lambda:(DResBlk(12,15,22),(R(2,12,11,13,requires_grad=True),R(2,22,requires_grad=True))),True)
fn("aud_eps_loss","loss",lambda ab,c,x,n,t:(lambda a:F.mse_loss(c(a.sqrt()*x+(1-a).sqrt()*n),n))(ab[t].view(-1,1,1,1)),(3,4,15,17),(3,4,15,17),ri(50,3),layers=lambda:(torch.cumprod(1-torch.linspace(1e-4,.02,50),0),nn.Conv2d(4,4,3,padding=1)),train=True)
fn("aud_vpred_minsnr","loss",lambda v,x,n,ls:(lambda a,s,w:(((v-(a*n-s*x))**2).mean((1,2,3))*w).mean())(torch.sigmoid(ls).sqrt()[:,None,None,None],torch.sigmoid(-ls).sqrt()[:,None,None,None],ls.exp().clamp(max=5.0)/(ls.exp()+1)),(4,3,13,16),(4,3,13,16),(4,3,13,16),(4,),train=True)
fn("aud_ddim_step","pointwise",lambda x,e,a,b:(lambda x0:(b.sqrt()[:,None,None]*x0+(1-b-0.01).clamp_min(0).sqrt()[:,None,None]*e,x0))(((x-(1-a).sqrt()[:,None,None]*e)/a.sqrt()[:,None,None]).clamp(-1,1)),(4,19,23),(4,19,23),ru(4),ru(4))
fn("aud_edm_precond","conv",lambda c,x,s:(lambda g:(.25/(g**2+.25))*x+(g*.5/(g**2+.25).sqrt())*c(x/(g**2+.25).sqrt()+g.log()/4))(s.exp()[:,None,None,None]),(3,5,12,17),(3,),layers=lambda:(nn.Conv2d(5,5,3,padding=1),),train=True)
fn("aud_cfg_rescale","pointwise",lambda u,c:(lambda g:0.7*(g*c.std((1,2,3),keepdim=True)/g.std((1,2,3),keepdim=True))+0.3*g)(u+7.5*(c-u)),(3,4,14,13),(3,4,14,13))
fn("aud_cfg_chunk","pointwise",lambda y,x:x-0.13*(lambda a,b:a+(b-a)*3.0)(*y.chunk(2,0)),(6,4,11,15),(3,4,11,15),train=True)
fn("aud_flow_match","loss",lambda c,x0,x1,t:((c((1-(1-1e-5)*t[:,None,None])*x0+t[:,None,None]*x1)-(x1-(1-1e-5)*x0))**2).mean(),(3,10,47),(3,10,47),ru(3),layers=lambda:(nn.Conv1d(10,10,5,padding=2),))
fn("aud_posterior_mean","pointwise",lambda x0,xt,b,al,ap:(b*ap.sqrt()/(1-al))[:,None,None]*x0+((1-ap)*(1-b).sqrt()/(1-al))[:,None,None]*xt,(5,17,26),(5,17,26),ru(5),lambda:torch.rand(5)*.9,ru(5))
fn("aud_learned_var_vlb","loss",lambda o,mn,mx,tm:(lambda m,v:(lambda lv:(0.5*(-1.0+lv-mn[:,None,None,None]+torch.exp(mn[:,None,None,None]-lv)+(tm-m)**2*torch.exp(-lv))).mean((1,2,3))/math.log(2.0))((v+1)/2*mx[:,None,None,None]+(1-(v+1)/2)*mn[:,None,None,None]))(*o.chunk(2,1)),(3,6,12,14),(3,),(3,),(3,3,12,14),train=True)
fn("aud_huber_diff","loss",lambda p,t:(torch.sqrt((p-t)**2+0.03**2)-0.03).flatten(1).mean(1),(4,3,17,15),(4,3,17,15),train=True)
class AdaLNZ(nn.Module):
    def __init__(s,d): super().__init__(); s.n=nn.LayerNorm(d,elementwise_affine=False,eps=1e-6); s.m=nn.Linear(d,3*d); s.a=nn.Linear(d,3*d+1); s.b=nn.Linear(3*d+1,d)
    def forward(s,x,c): sh,sc,g=s.m(F.silu(c)).unsqueeze(1).chunk(3,-1); return x+g*s.b(F.gelu(s.a(s.n(x)*(1+sc)+sh),approximate="tanh"))
add("aud_adaln_zero","block",lambda:(AdaLNZ(22),(R(3,29,22,requires_grad=True),R(3,22,requires_grad=True))),True)
# ---- VAE / VQ
fn("aud_vae_reparam_kl","loss",lambda l,x,e:(lambda m,lv:(m+torch.exp(0.5*lv)*e,-0.5*torch.mean(torch.sum(1+lv-m.pow(2)-lv.exp(),dim=1))))(*l(x).chunk(2,1)),(13,34),(13,21),layers=lambda:(nn.Linear(34,42),),train=True)
fn("aud_ldm_posterior","conv",lambda c,x,e:(lambda m,lv:(m+torch.exp(.5*lv)*e,0.5*torch.sum(m**2+lv.exp()-1.0-lv,dim=[1,2,3])))(*(lambda q:(q[0],q[1].clamp(-30.0,20.0)))(torch.chunk(c(x),2,1))),(3,9,12,14),(3,4,12,14),layers=lambda:(nn.Conv2d(9,8,1),),train=True)
fn("aud_gauss_kl2","loss",lambda m1,s1,m2,s2:((s2-s1)-0.5+0.5*(torch.exp(2*s1)+(m1-m2)**2)*torch.exp(-2.0*s2)).sum((1,2))/57.0,(5,13,19),(5,13,19),(5,13,19),(5,13,19),train=True)
fn("aud_vits_kl_mask","loss",lambda zp,lq,mp,lp,m:torch.sum((lp-lq-0.5+0.5*((zp-mp)**2)*torch.exp(-2.*lp))*m)/torch.sum(m),(3,16,37),(3,16,37),(3,16,37),(3,16,37),lambda:(torch.rand(3,1,37)<.8).float())
fn("aud_freebits","loss",lambda m,lv:torch.clamp((-0.5*(1+lv-m**2-lv.exp())).mean(0),min=0.125).sum()*0.25,(24,33),(24,33),train=True)
fn("aud_elbo_bernoulli","loss",lambda d,z,x,m,lv:F.binary_cross_entropy_with_logits(d(z),x,reduction="sum")/z.shape[0]-4.0*0.5*(1+lv-m*m-lv.exp()).sum(1).mean(),(11,18),lambda:(torch.rand(11,52)<.5).float(),(11,18),(11,18),layers=lambda:(nn.Linear(18,52),))
fn("aud_vq_argmin","product",lambda e,z:(z.pow(2).sum(1,keepdim=True)-2*z@e.t()+e.pow(2).sum(1)).argmin(1),(61,18),layers=lambda:(P(45,18),))
fn("aud_vq_full","product",lambda e,x:(lambda f:(lambda q:((x+(q-x).detach()),F.mse_loss(q.detach(),x)*0.25+F.mse_loss(q,x.detach())))(F.embedding(torch.argmin((f**2).sum(1,keepdim=True)+(e**2).sum(1)-2*torch.matmul(f,e.t()),1),e).view(x.shape[0],x.shape[2],-1).transpose(1,2)))(x.transpose(1,2).reshape(-1,x.shape[1])),(3,14,27),layers=lambda:(P(37,14),),train=True)
fn("aud_vq_perplexity","product",lambda e,z:(lambda o:torch.exp(-(o.mean(0)*torch.log(o.mean(0)+1e-10)).sum()))(F.one_hot(torch.cdist(z,e,compute_mode="donot_use_mm_for_euclid_dist").argmin(1),29).float()),(50,13),layers=lambda:(P(29,13),))
fn("aud_vq_cosine","product",lambda e,z:(lambda s:(s.max(-1)[0],s.argmax(-1),F.softmax(s*10,-1)@e))(F.normalize(z,dim=-1)@F.normalize(e,dim=-1).mT),(3,26,17),layers=lambda:(P(33,17),))
fn("aud_fsq","product",lambda l,x:(lambda z:z+(torch.round(z)-z).detach())(torch.tanh(l(x)+0.123)*3.4965-0.5)/4,(3,37,25),layers=lambda:(nn.Linear(25,6),),train=True)
fn("aud_lfq_bits","pointwise",lambda x:(lambda q:(x+(q-x).detach(),((q>0).long()*(2**torch.arange(x.shape[-1]))).sum(-1)))(torch.where(x>0,1.0,-1.0)),(4,47,9))
fn("aud_rvq_two","product",lambda e1,e2,x:(lambda q1:q1+e2[torch.cdist((x-q1)[None],e2[None])[0].argmin(-1)])(e1[torch.argmax(-(x.pow(2).sum(1,True)-2*x@e1.T+e1.T.pow(2).sum(0,True)),-1)]),(41,15),layers=lambda:(P(22,15),P(30,15)))
fn("aud_gumbel_given","product",lambda l,e,x,u:F.softmax((l(x)-torch.log(-torch.log(u+1e-10)+1e-10))/0.9,-1)@e,(19,23),lambda:torch.rand(19,31)*.98+.01,layers=lambda:(nn.Linear(23,31),P(31,14)))
fn("aud_mu_law","pointwise",lambda x:((torch.sign(x)*torch.log1p(255.0*x.abs().clamp(max=1))/math.log1p(255.0)+1)/2*255+0.5).to(torch.int64),(3,211))
fn("aud_mu_law_expand","pointwise",lambda q:(lambda y:torch.sign(y)*(torch.exp(torch.abs(y)*math.log(256.0))-1.0)/255)(q.float()/255*2-1),ri(256,4,180))
fn("aud_dmol_cdf","loss",lambda m,s,x:(lambda c,i:-torch.log((torch.sigmoid(i*(c+1/255))-torch.sigmoid(i*(c-1/255))).clamp(min=1e-12)).sum((1,2)))(x-m,torch.exp(-s.clamp(min=-7.0))),(4,3,120),(4,3,120),(4,3,120),train=True)
fn("aud_mol_mixture","loss",lambda l,y:(lambda p,m,s:-torch.logsumexp(F.log_softmax(p,-1)-0.5*((y[...,None]-m)*torch.exp(-s))**2-s-0.5*math.log(2*math.pi),-1).mean())(*l.chunk(3,-1)),(3,59,15),(3,59),train=True)
# ---- video
fn("aud_tsm","conv",lambda c,x:(lambda v:c(torch.cat([F.pad(v[:,1:,:3],(0,0,0,0,0,0,0,1)),F.pad(v[:,:-1,3:6],(0,0,0,0,0,0,1,0)),v[:,:,6:]],2).flatten(0,1)))(x.view(2,5,11,9,12)),(10,11,9,12),layers=lambda:(nn.Conv2d(11,7,3,padding=1),),train=True)
fn("aud_tsm_zeros","pointwise",lambda x:torch.cat((torch.cat((x[:,:,1:,:4],torch.zeros_like(x[:,:,:1,:4])),2),torch.cat((torch.zeros_like(x[:,:,:1,4:8]),x[:,:,:-1,4:8]),2),x[:,:,:,8:]),3).relu(),(2,3,6,13,29))
fn("aud_framediff_motion","reduction",lambda x:(lambda d:((d.abs()>0.5).float().mean((2,3,4)),d.pow(2).mean(2),d.amax((1,2))))(x[:,1:]-x[:,:-1]),(2,7,3,15,18))
class TEA(nn.Module):
    def __init__(s,c,r): super().__init__(); s.s=nn.Conv2d(c,r,1,bias=False); s.b=nn.BatchNorm2d(r); s.t=nn.Conv2d(r,r,3,padding=1,groups=r,bias=False); s.e=nn.Conv2d(r,c,1,bias=False); s.n=nn.BatchNorm2d(c)
    def forward(s,x):
        N,T,C,H,W=x.shape; y=s.b(s.s(x.flatten(0,1))); z=s.t(y).view(N,T,-1,H,W)[:,1:]-y.view(N,T,-1,H,W)[:,:-1]
        a=s.n(s.e(F.pad(z,(0,0,0,0,0,0,0,1)).flatten(0,1).mean((2,3),keepdim=True))).sigmoid()-0.5; return x+x*a.view(N,T,C,1,1)
add("aud_tea_motion","block",lambda:(TEA(14,5),(R(2,4,14,8,9,requires_grad=True),)),True)
fn("aud_flow_epe","loss",lambda p,g,v:(lambda e:((e*v).sum()/(v.sum()+1e-8),((e>3)&(e/(g.norm(dim=1)+1e-6)>0.05)).float().mean((1,2))))(torch.sqrt(((p-g)**2).sum(1)+1e-12)),(3,2,21,26),(3,2,21,26),lambda:(torch.rand(3,21,26)<.7).float())
fn("aud_flow_charbonnier","loss",lambda a,b,f:torch.pow((a-b)**2+0.001**2,0.45).mean()+0.5*((f[...,:,1:]-f[...,:,:-1]).abs()*torch.exp(-10*(a[...,:,1:]-a[...,:,:-1]).abs().mean(1,keepdim=True))).mean(),(2,3,19,23),(2,3,19,23),(2,2,19,23),train=True)
fn("aud_raft_seq_loss","loss",lambda ps,g,v:(torch.pow(torch.tensor(.8),torch.arange(ps.shape[0]-1,-1,-1).float())[:,None,None,None]*v[None]*(ps-g[None]).abs().mean(2)).mean((1,2,3)).sum(),(5,2,2,17,21),(2,2,17,21),lambda:(torch.rand(2,17,21)<.8).float(),train=True)
fn("aud_raft_convex_up","pointwise",lambda f,m:(lambda w,u:(w*u.view(2,2,9,1,1,7,9)).sum(2).permute(0,1,4,2,5,3).reshape(2,2,28,36))(torch.softmax(m.view(2,1,9,4,4,7,9)*0.25,dim=2),F.unfold(4*f,3,padding=1)),(2,2,7,9),(2,144,7,9))
fn("aud_corr_volume","product",lambda a,b:F.avg_pool2d((torch.einsum("bci,bcj->bij",a.flatten(2),b.flatten(2))/math.sqrt(a.shape[1])).reshape(-1,1,8,11),2,stride=2),(2,13,8,11),(2,13,8,11),train=True)
fn("aud_corr_shift","reduction",lambda a,b:F.leaky_relu(torch.stack([(a*F.pad(b,(2,2,2,2))[:,:,i:i+a.shape[2],j:j+a.shape[3]]).mean(1) for i in (0,2,4) for j in (0,2,4)],1),.1),(2,9,14,17),(2,9,14,17),train=True)
fn("aud_census","loss",lambda a,b:(lambda t:(lambda d:(d/(0.1+d)).mean(1,keepdim=True))((t(a)-t(b))**2).mean())(lambda x:(lambda p:(p-x)/torch.sqrt(.81+(p-x)**2))(F.unfold(x,3,padding=1).view(x.shape[0],9,*x.shape[2:]))),(2,1,18,21),(2,1,18,21))
fn("aud_fb_consistency","loss",lambda f,b:((f+b).pow(2).sum(1)>0.01*(f.pow(2).sum(1)+b.pow(2).sum(1))+0.5),(4,2,23,29),(4,2,23,29))
fn("aud_tubelet_divided","product",lambda q,k,v,x:(lambda z:x+(torch.softmax(q(z)@k(z).transpose(-1,-2)/math.sqrt(18),-1)@v(z)).permute(0,2,1,3))(x.permute(0,2,1,3)),(2,6,13,18),layers=lambda:(nn.Linear(18,18),nn.Linear(18,18),nn.Linear(18,18)),train=True)
class NL3(nn.Module):
    def __init__(s,c): super().__init__(); s.t=nn.Conv3d(c,c//2,1); s.p=nn.Conv3d(c,c//2,1); s.g=nn.Conv3d(c,c//2,1); s.w=nn.Conv3d(c//2,c,1); s.n=nn.BatchNorm3d(c)
    def forward(s,x): g=lambda l,y:l(y).flatten(2); d=F.max_pool3d(x,(1,2,2)); y=g(s.t,x).transpose(1,2)@g(s.p,d); y=(y/y.shape[-1])@g(s.g,d).transpose(1,2); return x+s.n(s.w(y.transpose(1,2).reshape(x.shape[0],-1,*x.shape[2:])))
add("aud_nonlocal3d","block",lambda:(NL3(10),(R(2,10,3,6,8,requires_grad=True),)),True)
fn("aud_slowfast_lateral","conv",lambda c,n,f,s:torch.cat([s,F.relu(n(c(f)))],1),(1,4,12,8,9),(1,11,4,8,9),layers=lambda:(nn.Conv3d(4,7,(5,1,1),(3,1,1),(2,0,0),bias=False),nn.BatchNorm3d(7)),train=True)
fn("aud_causal_conv3d","conv",lambda c,x:F.silu(c(torch.cat([x[:,:,:1].expand(-1,-1,2,-1,-1),x],2)))*0.9,(1,5,6,10,13),layers=lambda:(nn.Conv3d(5,9,3,padding=(0,1,1)),),train=True)
fn("aud_video_bf16","conv",lambda c,g,x:F.silu(g(c(x))).mean(2),lambda:R(1,6,5,11,12).bfloat16(),layers=lambda:(nn.Conv3d(6,10,(3,1,1),padding=(1,0,0)).bfloat16(),nn.GroupNorm(5,10).bfloat16()))
fn("aud_temporal_segment_consensus","product",lambda l,x,w:(l(x).view(4,6,-1)*F.softmax(w,1)[...,None]).sum(1).log_softmax(-1),(24,31),(4,6),layers=lambda:(nn.Linear(31,18),),train=True)
# ---- time series
def madec(x,k): return F.avg_pool1d(torch.cat([x[:,:1].repeat(1,(k-1)//2,1),x,x[:,-1:].repeat(1,(k-1)//2,1)],1).permute(0,2,1),k,stride=1).permute(0,2,1)
fn("aud_dlinear","product",lambda a,b,x:(lambda t:(a((x-t).permute(0,2,1))+b(t.permute(0,2,1))).permute(0,2,1))(madec(x,25)),(4,66,11),layers=lambda:(nn.Linear(66,26),nn.Linear(66,26)),train=True)
fn("aud_series_decomp_ff","conv",lambda a,b,x:(lambda y:y-madec(y,7))(x+b(F.relu(a(x.transpose(1,2)))).transpose(1,2)),(3,43,14),layers=lambda:(nn.Conv1d(14,30,1,bias=False),nn.Conv1d(30,14,1,bias=False)),train=True)
class RevIN(nn.Module):
    def __init__(s,c,i,o): super().__init__(); s.w=nn.Parameter(torch.ones(c)); s.b=nn.Parameter(torch.zeros(c)); s.l=nn.Linear(i,o)
    def forward(s,x): m=x.mean(1,keepdim=True).detach(); sd=torch.sqrt(x.var(1,keepdim=True,unbiased=False)+1e-5).detach(); y=s.l(((x-m)/sd*s.w+s.b).mT).mT; return (y-s.b)/(s.w+1e-10)*sd+m
add("aud_revin_linear","block",lambda:(RevIN(9,58,22),(R(5,58,9,requires_grad=True),)),True)
class NBeats(nn.Module):
    def __init__(s,i,h,o): super().__init__(); s.a=nn.Linear(i,h); s.b=nn.Linear(h,h); s.t=nn.Linear(h,6,bias=False); g=torch.arange(i+o)/(i+o); s.register_buffer("T",torch.stack([g**k for k in range(3)])); s.i=i
    def forward(s,x): th=s.t(F.relu(s.b(F.relu(s.a(x))))); return x-th[:,:3]@s.T[:,:s.i],th[:,3:]@s.T[:,s.i:]
add("aud_nbeats_trend","block",lambda:(NBeats(35,42,13),(R(18,35,requires_grad=True),)),True)
fn("aud_tft_grn","product",lambda a,c,b,g,n,x,z:n(x+F.glu(g(b(F.elu(a(x)+c(z).unsqueeze(1)))),-1)),(3,29,22),(3,14),layers=lambda:(nn.Linear(22,30),nn.Linear(14,30,bias=False),nn.Linear(30,22),nn.Linear(22,44),nn.LayerNorm(22)),train=True)
fn("aud_quantile_loss","loss",lambda p,y:(lambda e,q:torch.maximum(q*e,(q-1)*e).sum(-1).mean())(y[...,None]-p,torch.tensor([.1,.5,.9])),(6,37,3),(6,37),train=True)
fn("aud_smape_mase","loss",lambda p,y:((200*(p-y).abs()/(p.abs()+y.abs()+1e-8)).mean(1),(p-y).abs().mean(1)/(y[:,7:]-y[:,:-7]).abs().mean(1).clamp_min(1e-6)),(9,88),(9,88))
fn("aud_deepar_nll","product",lambda a,b,h,y,v:(lambda m,s:0.5*math.log(2*math.pi)+torch.log(s*v[:,None])+0.5*((y-m*v[:,None])/(s*v[:,None]))**2)(a(h).squeeze(-1),F.softplus(b(h)).squeeze(-1)+1e-4).mean(1),(8,31,26),(8,31),lambda:torch.rand(8)+.5,layers=lambda:(nn.Linear(26,1),nn.Linear(26,1)))
fn("aud_negbin_nll","loss",lambda mu,al,z:(lambda m,a:-(torch.lgamma(z+1/a)-torch.lgamma(z+1.)-torch.lgamma(1/a)-1/a*torch.log(1+a*m)+z*torch.log(a*m/(1+a*m))).sum(-1))(F.softplus(mu),F.softplus(al)+1e-3),(7,61),(7,61),lambda:torch.randint(0,9,(7,61)).float())
fn("aud_student_t","loss",lambda m,s,df,y:(lambda s,n:(0.5*(n+1)*torch.log1p(((y-m)/s)**2/n)+s.log()+0.5*n.log()).mean())(F.softplus(s)+1e-6,2.0+F.softplus(df)),(5,72),(5,72),(5,1),(5,72),train=True)
fn("aud_patchtst_embed","product",lambda l,p,x:F.gelu(l(F.pad(x,(0,8),mode="constant").unfold(-1,16,8))+p),(3,5,96),layers=lambda:(nn.Linear(16,27),P(12,27)),train=True)
fn("aud_tsmixer","product",lambda n,t,m,a,b,x:(lambda y:y+b(F.relu(a(m(y)))))(x+F.relu(t(n(x).transpose(1,2))).transpose(1,2)),(4,36,15),layers=lambda:(nn.LayerNorm(15),nn.Linear(36,36),nn.LayerNorm(15),nn.Linear(15,33),nn.Linear(33,15)),train=True)
fn("aud_inverted_embed","product",lambda l,q,x,mk:(lambda e:torch.softmax((q(e)@e.mT)*0.2,-1)@e)(l(torch.cat([x.permute(0,2,1),mk.permute(0,2,1)],1))),(3,48,13),(3,48,4),layers=lambda:(nn.Linear(48,22),nn.Linear(22,22)),train=True)
fn("aud_holt_weights","reduction",lambda al,x:(lambda a:(a*(1-a)**torch.arange(x.shape[1]-1,-1,-1).float()[:,None]*x).sum(1))(torch.sigmoid(al)[None]),(7,53,9),layers=lambda:(P(1,9),),train=True)
fn("aud_ema_matrix","product",lambda x:(lambda d:torch.where(d>=0,0.1*0.9**d.clamp(min=0),torch.zeros(()))@x)((torch.arange(45)[:,None]-torch.arange(45)[None]).float()),(4,45,17),train=True)
fn("aud_diff_season","pointwise",lambda x:(lambda d:d[:,12:]-d[:,:-12])(torch.log(x+1.0)[:,1:]-torch.log(x+1.0)[:,:-1]),ru(5,63,6))
fn("aud_roll_zscore","pool",lambda x:(lambda m,q:(x[...,14:]-m)/torch.sqrt((q-m*m).clamp_min(1e-8)))(F.avg_pool1d(x,15,1),F.avg_pool1d(x*x,15,1)),(4,7,95),train=True)
fn("aud_cummax_drawdown","scan",lambda r:(lambda w:((torch.cummax(w,1).values-w)/torch.cummax(w,1).values).amax(1))(torch.cumprod(1+0.01*r,1)),(11,87))
fn("aud_cumsum_logret_sharpe","scan",lambda r:(torch.exp(torch.cumsum(torch.log1p(r*.02),-1))-1,r.mean(-1)/(r.std(-1)+1e-9)*math.sqrt(252)),lambda:torch.randn(6,101).clamp(-3,3))
fn("aud_irr_decay_gru_d","product",lambda g,w,x,m,d,xl,xm,h:(lambda gx:torch.tanh(w(torch.cat([m*x+(1-m)*(gx*xl+(1-gx)*xm),h*torch.exp(-F.relu(g(d))),m],1))))(torch.exp(-F.relu(d*0.3))),(10,13),lambda:(torch.rand(10,13)<.6).float(),ru(10,13),(10,13),(13,),(10,21),layers=lambda:(nn.Linear(13,21),nn.Linear(47,21)))
class InceptT(nn.Module):
    def __init__(s,i,b,f): super().__init__(); s.b=nn.Conv1d(i,b,1,bias=False); s.cs=nn.ModuleList(nn.Conv1d(b,f,k,padding=k//2,bias=False) for k in (5,11,23)); s.p=nn.Conv1d(i,f,1,bias=False); s.n=nn.BatchNorm1d(4*f); s.r=nn.Conv1d(i,4*f,1)
    def forward(s,x): z=s.b(x); return F.relu(s.n(torch.cat([*[c(z) for c in s.cs],s.p(F.max_pool1d(x,3,1,1))],1))+s.r(x))
add("aud_inceptiontime","block",lambda:(InceptT(9,6,7),(R(3,9,62,requires_grad=True),)),True)
class EEGNet(nn.Module):
    def __init__(s,ch): super().__init__(); s.t=nn.Conv2d(1,6,(1,17),padding=(0,8),bias=False); s.n=nn.BatchNorm2d(6); s.d=nn.Conv2d(6,12,(ch,1),groups=6,bias=False); s.n2=nn.BatchNorm2d(12); s.p=nn.Conv2d(12,12,(1,7),padding=(0,3),groups=12,bias=False); s.q=nn.Conv2d(12,10,1,bias=False)
    def forward(s,x): y=F.avg_pool2d(F.elu(s.n2(s.d(s.n(s.t(x))))),(1,4)); return F.elu(s.q(s.p(y))).mean(3).flatten(1)
add("aud_eegnet","block",lambda:(EEGNet(13),(R(2,1,13,90,requires_grad=True),)),True)
fn("aud_shallow_fbcsp","conv",lambda c,n,x:torch.log(F.avg_pool1d(n(c(x)).square(),30,7).clamp(min=1e-6)),(3,11,140),layers=lambda:(nn.Conv1d(11,14,13,bias=False),nn.BatchNorm1d(14)),train=True)
fn("aud_rocket_ppv","conv",lambda c,x:(lambda y:torch.cat([(y>0).float().mean(-1),y.amax(-1)],1))(c(x)),(4,3,111),layers=lambda:(nn.Conv1d(3,26,9,dilation=4,padding=16),))
# ---- low precision and odd layouts
fn("aud_bf16_wn_gate","conv",lambda c,x:(lambda y:torch.tanh(y[:,::2])*torch.sigmoid(y[:,1::2]))(c(x)),rh(2,14,66),layers=lambda:(nn.Conv1d(14,30,3,padding=2,dilation=2).bfloat16(),),train=False)
fn("aud_f16_mel_proj","product",lambda l,x:F.softplus(l(F.relu(x))).float().log1p(),rf(3,37,22),layers=lambda:(nn.Linear(22,41).half(),))
fn("aud_bf16_rms_snake","norm",lambda w,x:(lambda y:y+torch.sin(y*1.5)**2/1.5)(x*torch.rsqrt(x.float().pow(2).mean(-2,keepdim=True)+1e-6).to(x.dtype)*w),rh(3,26,53),layers=lambda:(P(26,1).data.bfloat16(),))
fn("aud_bf16_ct1","conv",lambda c,x:F.leaky_relu(c(x),0.1)*0.5,rh(2,12,34),layers=lambda:(nn.ConvTranspose1d(12,9,4,2,1).bfloat16(),))
fn("aud_f16_hinge","loss",lambda a,b:(F.relu(1-a.float()).mean(1)+F.relu(1+b.float()).mean(1)).half(),rf(9,130),rf(9,130))
fn("aud_bf16_lstm","product",lambda l,x,c:(lambda i,f,g,o:o.sigmoid()*torch.tanh(f.sigmoid()*c+i.sigmoid()*g.tanh()))(*l(x).chunk(4,-1)),rh(15,26),rh(15,22),layers=lambda:(nn.Linear(26,88).bfloat16(),))
fn("aud_bf16_ldm_kl","loss",lambda m,lv:(m.float()**2+lv.float().clamp(-30,20).exp()-1-lv.float()).flatten(1).sum(1)*0.5,rh(4,6,13,11),rh(4,6,13,11))
fn("aud_bf16_ddim","pointwise",lambda x,v,a,s:(a[:,None,None]*x-s[:,None,None]*v).clamp(-1,1).to(torch.bfloat16),rh(4,21,43),rh(4,21,43),ru(4),ru(4))
fn("aud_f16_conv3","conv",lambda c,b,x:F.hardswish(c(x))+b,rf(1,5,4,11,9),layers=lambda:(nn.Conv3d(5,8,3,padding=1).half(),P(8,1,1,1).data.half()))
fn("aud_bf16_ctc","product",lambda l,x:F.log_softmax(l(x).float(),-1),rh(3,33,18),layers=lambda:(nn.Linear(18,45).bfloat16(),))
add("aud_transposed_in","norm",lambda:(Of(lambda x:(x-x.mean(1,keepdim=True))/(x.var(1,keepdim=True)+1e-5).sqrt()),(R(3,61,22).transpose(1,2),)))
add("aud_sliced_in","pointwise",lambda:(Of(lambda x,y:torch.tanh(x)*torch.sigmoid(y)+1/3*x),(R(4,30,57)[:,:15],R(4,30,57)[:,15:])))
add("aud_strided_in","reduction",lambda:(Of(lambda x:torch.logsumexp(x*2.5,dim=(1,2))-x.amin((1,2))),(R(7,26,90)[...,::2],)))
add("aud_chlast3d","reduction",lambda:(Of(lambda x:F.relu6(x-x.mean((2,3,4),keepdim=True)).sum(1)),(R(2,7,6,11,9).contiguous(memory_format=torch.channels_last_3d),)))
add("aud_spec_expand","pointwise",lambda:(Of(lambda s,n:s*n.exp()-torch.log(s.abs()+1e-7)),(R(3,27,62),R(3,1,62).expand(3,27,62))))
# ---- more audio
fn("aud_encodec_down","conv",lambda c,x:c(F.pad(F.elu(x,alpha=1.0),(4,0))),(2,11,78),layers=lambda:(nn.Conv1d(11,22,8,stride=4),),train=True)
fn("aud_istft_head","product",lambda l,x:(lambda m,p:(torch.exp(m).clamp(max=1e2)*torch.cos(p),m.exp().clip(max=1e2)*torch.sin(p)))(*l(x).transpose(1,2).chunk(2,1)),(3,31,20),layers=lambda:(nn.Linear(20,54),),train=True)
class CNX1(nn.Module):
    def __init__(s,c): super().__init__(); s.d=nn.Conv1d(c,c,7,padding=3,groups=c); s.n=nn.LayerNorm(c,eps=1e-6); s.a=nn.Linear(c,3*c); s.g=P(1,1,3*c); s.b=P(1,1,3*c); s.o=nn.Linear(3*c,c)
    def forward(s,x): h=F.gelu(s.a(s.n(s.d(x).mT))); gx=h.norm(p=2,dim=1,keepdim=True); h=s.g*(h*(gx/(gx.mean(-1,keepdim=True)+1e-6)))+s.b+h; return x+s.o(h).mT
add("aud_convnext_grn1d","block",lambda:(CNX1(17),(R(3,17,46,requires_grad=True),)),True)
fn("aud_mask_crm","pointwise",lambda m,x:(lambda a,b:torch.stack((x[:,0]*a-x[:,1]*b,x[:,0]*b+x[:,1]*a),1))(-10*torch.log((10-m[:,0].clamp(-9.9,9.9))/(10+m[:,0].clamp(-9.9,9.9))),10*m[:,1].tanh()),(3,2,27,44),(3,2,27,44),train=True)
fn("aud_ibm_irm","pointwise",lambda s,n:((s.pow(2)/(s.pow(2)+n.pow(2)+1e-8)).sqrt(),(20*torch.log10(s.abs()/n.abs().clamp_min(1e-5)+1e-8)>0).float()),(4,33,57),(4,33,57))
fn("aud_softmask_multi","conv",lambda c,x:F.softmax(c(x).view(2,3,19,-1),dim=1)*x.unsqueeze(1),(2,19,63),layers=lambda:(nn.Conv1d(19,57,1),),train=True)
fn("aud_mvdr_cov","product",lambda m,r,i:(lambda w:(torch.einsum("bft,bcft,bdft->bfcd",w,r,r)+torch.einsum("bft,bcft,bdft->bfcd",w,i,i)))(m/(m.sum(-1,keepdim=True)+1e-6)),ru(2,11,23),(2,4,11,23),(2,4,11,23))
fn("aud_loudness_gate","reduction",lambda x:(lambda p:-0.691+10*torch.log10(((p*(p>0.8)).sum(-1)/(p>.8).sum(-1).clamp(min=1)).clamp_min(1e-9)))(F.avg_pool1d(x*x,16,8)),(4,3,210))
fn("aud_soft_compress","pointwise",lambda x,t,r:(lambda d:torch.sign(x)*torch.pow(10.,(d-F.relu(d-t[:,None])*(1-1/(1+r.exp()[:,None])))/20))(20*torch.log10(x.abs()+1e-5)),(5,170),(5,),(5,),train=True)
fn("aud_zcr_rms_centroid","reduction",lambda x,s:(((x[...,1:]*x[...,:-1])<0).float().mean(-1),x.square().mean(-1).sqrt(),(s*torch.linspace(0,8000,s.shape[-1])).sum(-1)/(s.sum(-1)+1e-6)),(6,23,40),ru(6,23,29))
fn("aud_duration_expand","product",lambda d,h:(lambda e:((torch.arange(60)[None,None]<e[...,None])&(torch.arange(60)[None,None]>=(e-d)[...,None])).float().transpose(1,2)@h)(torch.cumsum(d,1)),ri(5,3,19),(3,19,22))
fn("aud_gauss_upsample","product",lambda d,s,h:(lambda c:torch.softmax(-0.5*((torch.arange(47).float()[None,:,None]-c[:,None])/(F.softplus(s)[:,None]+1e-2))**2,-1)@h)(torch.cumsum(d,1)-0.5*d),lambda:torch.rand(2,16)*3,(2,16),(2,16,21))
fn("aud_mas_neg_cent","product",lambda z,m,l:(lambda s:(-0.5*math.log(2*math.pi)-l).sum(1,keepdim=True).transpose(1,2)+s.mT@(-0.5*z**2).mT.mT.contiguous().neg().neg()+(m*s).mT@z+(-0.5*m**2*s).sum(1)[...,None])(torch.exp(-2*l)),(2,14,33),(2,14,18),(2,14,18),train=True)
fn("aud_guided_attn","loss",lambda a:(a*(1-torch.exp(-((torch.arange(a.shape[1])/a.shape[1])[:,None]-(torch.arange(a.shape[2])/a.shape[2])[None])**2/(2*0.2**2)))).mean((1,2)),(4,41,27),train=True)
fn("aud_location_attn","product",lambda q,m,c,d,v,x,h,w,mk:(lambda e:torch.softmax(v(torch.tanh(e)).squeeze(-1).masked_fill(mk,float("-inf")),1))(q(h)[:,None]+m(x)+d(c(w).transpose(1,2))),(3,34,21),(3,25),(3,2,34),lambda:torch.arange(34)[None]>=torch.tensor([34,22,29])[:,None],layers=lambda:(nn.Linear(25,18,bias=False),nn.Linear(21,18,bias=False),nn.Conv1d(2,7,5,padding=2,bias=False),nn.Linear(7,18,bias=False),nn.Linear(18,1,bias=False)),train=True)
fn("aud_affine_coupling","conv",lambda a,b,x:(lambda x0,x1:(lambda h:(torch.cat([x0,x1*torch.exp(h[:,9:].tanh())+h[:,:9]],1),h[:,9:].tanh().sum((1,2))))(b(F.relu(a(x0)))))(*x.chunk(2,1)),(3,18,38),layers=lambda:(nn.Conv1d(9,15,3,padding=1),nn.Conv1d(15,18,1)),train=True)
fn("aud_actnorm_flow","loss",lambda w,b,x:(torch.exp(w)[None,:,None]*x+b[None,:,None],w.sum()*x.shape[2]-0.5*(x**2+math.log(2*math.pi)).sum((1,2))),(4,18,52),layers=lambda:(P(18),P(18)),train=True)
