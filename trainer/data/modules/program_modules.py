"""Long programs without a product: geometry, physics, signals, optimisers, losses, statistics."""
from written_base import *
def d(label,*shapes,train=True,layers=lambda:()):
    def w(f): fn(f.__name__,label,f,*shapes,train=train,layers=layers); return f
    return w
@d("loss",(9,37,4),(9,37,4),ru(9,37))
def lp_giou(p,t,w):
    a=torch.cat([p[...,:2]-F.softplus(p[...,2:])/2,p[...,:2]+F.softplus(p[...,2:])/2],-1); b=torch.cat([t[...,:2]-t[...,2:].abs()/2,t[...,:2]+t[...,2:].abs()/2],-1)
    lt=torch.maximum(a[...,:2],b[...,:2]); rb_=torch.minimum(a[...,2:],b[...,2:]); i=(rb_-lt).clamp(min=0).prod(-1)
    u=(a[...,2:]-a[...,:2]).prod(-1)+(b[...,2:]-b[...,:2]).prod(-1)-i; iou=i/(u+1e-7)
    c=(torch.maximum(a[...,2:],b[...,2:])-torch.minimum(a[...,:2],b[...,:2])).prod(-1)
    return ((1-iou+(c-u)/(c+1e-7))*w).sum()/w.sum().clamp(min=1.0), iou
@d("loss",ru(13,51,4),ru(13,51,4),rb(.6,13,51))
def lp_ciou(p,t,m):
    px,py,pw,ph=p.unbind(-1); tx,ty,tw,th=t.unbind(-1)
    x1=torch.maximum(px-pw/2,tx-tw/2); x2=torch.minimum(px+pw/2,tx+tw/2); y1=torch.maximum(py-ph/2,ty-th/2); y2=torch.minimum(py+ph/2,ty+th/2)
    inter=F.relu(x2-x1)*F.relu(y2-y1); iou=inter/(pw*ph+tw*th-inter+1e-6)
    cw=torch.maximum(px+pw/2,tx+tw/2)-torch.minimum(px-pw/2,tx-tw/2); ch=torch.maximum(py+ph/2,ty+th/2)-torch.minimum(py-ph/2,ty-th/2)
    rho=(px-tx)**2+(py-ty)**2; v=(4/math.pi**2)*(torch.atan(tw/(th+1e-3))-torch.atan(pw/(ph+1e-3)))**2; al=(v/(1-iou+v+1e-6)).detach()
    return torch.where(m,1-iou+rho/(cw**2+ch**2+1e-6)+al*v,torch.zeros_like(iou)).sum(1)/m.sum(1).clamp(min=1)
@d("pointwise",(3,5,17,19,5),ru(5,2),train=False)
def lp_yolo_decode(x,anc):
    B,A,H,W,_=x.shape; gy=torch.arange(H,device=x.device,dtype=x.dtype)[:,None]; gx=torch.arange(W,device=x.device,dtype=x.dtype)[None]
    xy=torch.sigmoid(x[...,:2])*2-0.5; cx=(xy[...,0]+gx)/W; cy=(xy[...,1]+gy)/H; wh=(torch.sigmoid(x[...,2:4])*2)**2*anc[None,:,None,None]
    o=x[...,4].sigmoid(); return torch.stack([cx-wh[...,0]/2,cy-wh[...,1]/2,cx+wh[...,0]/2,cy+wh[...,1]/2],-1).clamp(0,1), o, (o>0.25).sum((2,3))
@d("pointwise",(7,93,4),ru(93,4))
def lp_box_delta_codec(dl,an):
    aw=an[:,2]+1e-2; ah=an[:,3]+1e-2; dw=(dl[...,2]*0.2).clamp(max=math.log(1000/16)); dh=(dl[...,3]*0.2).clamp(max=math.log(1000/16))
    cx=dl[...,0]*0.1*aw+an[:,0]; cy=dl[...,1]*0.1*ah+an[:,1]; w=dw.exp()*aw; h=dh.exp()*ah
    bx=torch.stack((cx-.5*w,cy-.5*h,cx+.5*w,cy+.5*h),2); area=(bx[...,2]-bx[...,0])*(bx[...,3]-bx[...,1]); return bx/area.sqrt().unsqueeze(-1), area.log().mean(0)
@d("reduction",(5,17,23,31))
def lp_soft_argmax_dark(h):
    B,K,H,W=h.shape; p=torch.softmax(h.flatten(2)*3.3,-1).view(B,K,H,W); px=p.sum(2); py=p.sum(3)
    xs=torch.linspace(-1,1,W,device=h.device); ys=torch.linspace(-1,1,H,device=h.device); mx=(px*xs).sum(-1); my=(py*ys).sum(-1)
    vx=(px*(xs-mx[...,None])**2).sum(-1); vy=(py*(ys-my[...,None]).square()).sum(-1); cov=(p*(xs[None,:]-mx[...,None,None])*(ys[:,None]-my[...,None,None])).sum((2,3))
    return torch.stack([mx,my],-1), vx*vy-cov**2, torch.sqrt(vx+vy+1e-9)
@d("loss",(6,17,2),(6,17,2),ru(17),rb(.7,6,17),ru(6))
def lp_oks(p,g,sig,v,area):
    e=((p-g)**2).sum(-1)/((2*sig+.02)**2*(area[:,None]+1e-3)*2); ks=torch.exp(-e)*v; n=v.sum(-1).float(); o=ks.sum(-1)/(n+(n==0).float())
    th=torch.linspace(.5,.95,10,device=p.device); soft=torch.sigmoid((o[:,None]-th)*20).mean(-1); return (1-o).mean()+0.1*(1-soft).pow(2).mean(), ks
@d("loss",(4,21,29,27),ru(4,21,29,27))
def lp_adaptive_wing(p,t):
    om,th,ep,al=14.0,0.5,1.0,2.1; dlt=(t-p).abs(); q=al-t; rr=torch.pow(torch.as_tensor(th/ep),q)
    A=om*(1/(1+rr))*q*torch.pow(torch.as_tensor(th/ep),q-1)/ep; C=th*A-om*torch.log1p(rr)
    l=torch.where(dlt<th,om*torch.log1p((dlt/ep+1e-8)**q),A*dlt-C); w=(F.max_pool2d(t,3,1,1)>=0.2).to(p.dtype)*10+1; return (l*w).mean((2,3)).sum(0)
@d("loss",(8,68,2),(8,68,2),ru(68))
def lp_wing_normed(p,t,w):
    io=(t[:,36]-t[:,45]).norm(dim=-1,keepdim=True)+1e-3; e=((p-t)/io[:,:,None]*10).abs(); c=10-10*math.log(1+10/2.0)
    l=torch.where(e<10,10*torch.log(1+e/2.0),e-c); return (l.mean(-1)*w).sum(-1)/(w.sum()+1e-6), (e.amax((1,2))>8).float()
@d("pointwise",(11,43,4),(11,43,4),(11,43,3))
def lp_quat_rotate_mul(a,b,v):
    a=a/a.norm(dim=-1,keepdim=True).clamp(min=1e-6); b=F.normalize(b,dim=-1); w1,x1,y1,z1=a.unbind(-1); w2,x2,y2,z2=b.unbind(-1)
    q=torch.stack([w1*w2-x1*x2-y1*y2-z1*z2,w1*x2+x1*w2+y1*z2-z1*y2,w1*y2-x1*z2+y1*w2+z1*x2,w1*z2+x1*y2-y1*x2+z1*w2],-1); q=torch.where(q[...,:1]<0,-q,q)
    u=q[...,1:]; t=2*(u[...,[1,2,0]]*v[...,[2,0,1]]-u[...,[2,0,1]]*v[...,[1,2,0]]); return v+q[...,:1]*t+u[...,[1,2,0]]*t[...,[2,0,1]]-u[...,[2,0,1]]*t[...,[1,2,0]], q
@d("pointwise",(9,57,4))
def lp_quat_to_cov(q):
    s=torch.exp(q.flip(-1)[...,:3]*0.5); n=q*torch.rsqrt(q.square().sum(-1,keepdim=True)+1e-8); w,x,y,z=torch.split(n,1,-1)
    r=torch.cat([1-2*(y*y+z*z),2*(x*y-w*z),2*(x*z+w*y),2*(x*y+w*z),1-2*(x*x+z*z),2*(y*z-w*x),2*(x*z-w*y),2*(y*z+w*x),1-2*(x*x+y*y)],-1).unflatten(-1,(3,3)); l=r*s[...,None,:]
    return (l[...,:,None,:]*l[...,None,:,:]).sum(-1), s.prod(-1)
@d("pointwise",(7,101,3),(7,3))
def lp_euler_project(p,e):
    c=e.cos(); s=e.sin(); cx,cy,cz=[t[:,None] for t in c.unbind(1)]; sx,sy,sz=[t[:,None] for t in s.unbind(1)]; x,y,z=p.unbind(-1)
    y1=cx*y-sx*z; z1=sx*y+cx*z; x2=cy*x+sy*z1; z2=-sy*x+cy*z1; x3=cz*x2-sz*y1; y3=sz*x2+cz*y1; z3=F.softplus(z2)+0.1
    u=x3/z3; v=y3/z3; r2=u*u+v*v; rad=1+r2*(0.12+r2*(-0.031+r2*0.0042)); ud=u*rad+2*.001*u*v+.0007*(r2+2*u*u); vd=v*rad+.001*(r2+2*v*v)+2*.0007*u*v
    return torch.stack([320.5*ud+319.5,318.2*vd+239.5,1/z3],-1)
@d("pointwise",(33,61,3),(33,61,3),train=False)
def lp_ray_box(o,dd):
    inv=1/torch.where(dd.abs()<1e-6,torch.full_like(dd,1e-6),dd); a=(-1.5-o)*inv; b=(1.5-o)*inv; n=torch.minimum(a,b).amax(-1); f=torch.maximum(a,b).amin(-1); hit=(f>n.clamp(min=0))&(f>0)
    t=torch.where(hit,n.clamp(min=0.0),torch.full_like(n,float("inf"))); p=o+dd*torch.where(hit,t,0.).unsqueeze(-1); ax=(p.abs()-1.5).abs().argmin(-1); return t, hit, p*hit[...,None], ax
@d("pointwise",(41,1,3),(41,1,3),(1,19,3),ru(1,19))
def lp_ray_spheres(o,dr,c,r):
    dr=dr/(dr.norm(dim=-1,keepdim=True)+1e-6); oc=o-c; b=(oc*dr).sum(-1); cc=oc.pow(2).sum(-1)-(r+.3)**2; disc=b*b-cc; ok=disc>0; sq=torch.where(ok,disc,torch.ones_like(disc)).sqrt()
    t=torch.where(ok&(-b-sq>1e-3),-b-sq,torch.where(ok&(-b+sq>1e-3),-b+sq,torch.full_like(b,1e4))); w=F.softmin(t*0.5,dim=-1)*(t<1e4); n=(o+t.clamp(max=50.)[...,None]*dr-c)/(r[...,None]+.3)
    return (w[...,None]*(n*0.5+0.5)).sum(1), (w*t).sum(1)/(w.sum(1)+1e-5)
@d("scan",(5,29,37,4),ru(5,29,37))
def lp_volume_render(rgbs,dt):
    sg=F.softplus(rgbs[...,3]-1.0); a=1-torch.exp(-sg*(dt+.01)); T=torch.cumprod(torch.cat([torch.ones_like(a[...,:1]),1-a+1e-10],-1),-1)[...,:-1]; w=a*T
    z=dt.cumsum(-1); c=(w[...,None]*torch.sigmoid(rgbs[...,:3])).sum(-2); acc=w.sum(-1); dep=(w*z).sum(-1)/(acc+1e-6); dist=(w*(z-dep[...,None]).square()).sum(-1); return c+(1-acc)[...,None], dep, dist
@d("scan",(77,45),ru(77,45))
def lp_mip_distortion(s,t):
    tt=t.cumsum(1); w=torch.exp(-F.pad(F.softplus(s).cumsum(1)[:,:-1],(1,0)))*(1-torch.exp(-F.softplus(s))); m=F.pad((tt[:,1:]+tt[:,:-1])*.5,(0,1)); dl=F.pad(tt[:,1:]-tt[:,:-1],(0,1),value=1.)
    l1=(w[:,None]*w[:,:,None]*(m[:,None]-m[:,:,None]).abs()).sum((1,2)); l2=(w*w*dl).sum(1)/3; return l1+l2
@d("pointwise",(13,67,3))
def lp_sdf_scene(p):
    q=p.abs()-torch.tensor([.6,.4,.3],device=p.device); box=F.relu(q).norm(dim=-1)+q.amax(-1).clamp(max=0.); sph=(p-.5).square().sum(-1).add(1e-8).sqrt()-.7
    xz=torch.hypot(p[...,0],p[...,2]+1e-4)-.9; tor=torch.sqrt(xz*xz+p[...,1]**2+1e-9)-.2; k=.15; h=(.5+.5*(sph-box)/k).clamp(0,1); s=torch.lerp(sph,box,h)-k*h*(1-h); u=torch.maximum(-tor,s); return u, torch.exp(-20*u.abs()), torch.sigmoid(-u/.01)
@d("pointwise",(19,53,3),(19,3,16))
def lp_sh_deg3(v,k):
    x,y,z=F.normalize(v,dim=-1,eps=1e-5).unbind(-1); xx,yy,zz=x*x,y*y,z*z; o=torch.ones_like(x)
    b=torch.stack([.2820948*o,-.4886025*y,.4886025*z,-.4886025*x,1.0925484*x*y,-1.0925484*y*z,.3153916*(2*zz-xx-yy),-1.0925484*x*z,.5462742*(xx-yy),-.5900436*y*(3*xx-yy),2.8906114*x*y*z,-.4570458*y*(4*zz-xx-yy),.3731763*z*(2*zz-3*xx-3*yy),-.4570458*x*(4*zz-xx-yy),1.4453057*z*(xx-yy),-.5900436*x*(xx-3*yy)],-1)
    return ((b[:,:,None]*k[:,None]).sum(-1)+.5).clamp_min(0)
@d("scan",(23,2),(23,3),ru(23),ru(23,3),train=True)
def lp_gauss_splat(mu,cv,op,col):
    g=torch.arange(11,device=mu.device)/11.; yy=g[:,None].expand(11,11); xx=g.expand(11,11); dx=xx.flatten()[:,None]-mu[:,0]; dy=yy.flatten()[:,None]-mu[:,1]; A=cv[:,0].exp()+.1; C=cv[:,2].exp()+.1; Bq=torch.tanh(cv[:,1])*(A*C).sqrt()*.9
    al=(op*torch.exp(-.5*(A*dx*dx+C*dy*dy)-Bq*dx*dy)).clamp(max=.99); al=torch.where(al<1/255,0.,al); T=torch.cumprod(1-al,1); T=torch.cat([torch.ones_like(T[:,:1]),T[:,:-1]],1); w=al*T; return (w[...,None]*col).sum(1).T.reshape(3,11,11), w.amax(1)
@d("pointwise",(3,3,35,42))
def lp_aces_tone(x):
    x=F.softplus(x); lum=(x*torch.tensor([.2126,.7152,.0722],device=x.device).view(3,1,1)).sum(1,keepdim=True); key=torch.exp((lum+1e-4).log().mean((2,3),keepdim=True)); s=x*.18/key; wh=(lum*.18/key).amax((2,3),keepdim=True); r=s*(1+s/(wh*wh))/(1+s)
    a=(s*(2.51*s+.03))/(s*(2.43*s+.59)+.14); o=torch.where(lum>.5,a,r).clamp(0,1); return torch.where(o<=.0031308,12.92*o,1.055*(o+1e-7)**(1/2.4)-.055)
@d("pointwise",ru(5,3,27,33),train=False)
def lp_rgb_hsv_shift(x):
    mx,ix=x.max(1); mn=x.amin(1); df=mx-mn; sf=df+(df==0); r,g,b=x.unbind(1); h=torch.where(ix==0,(g-b)/sf%6,torch.where(ix==1,(b-r)/sf+2,(r-g)/sf+4))/6; s=torch.where(mx>0,df/(mx+1e-8),0.); h=(h+.37)%1.0; s=(s*1.4).clamp(max=1.)
    i=(h*6).floor(); f=h*6-i; p=mx*(1-s); q=mx*(1-f*s); t=mx*(1-(1-f)*s); i=i.long()%6; R_=torch.where((i==0)|(i==5),mx,torch.where(i==1,q,torch.where(i==4,t,p))); G=torch.where((i==1)|(i==2),mx,torch.where(i==0,t,torch.where(i==3,q,p))); B=torch.where((i==3)|(i==4),mx,torch.where(i==2,t,torch.where(i==5,q,p))); return torch.stack([R_,G,B],1)
@d("pointwise",ru(4,3,31,29),ru(4,3,31,29))
def lp_lab_deltae(x,y):
    def lab(v):
        l=torch.where(v>.04045,((v+.055)/1.055)**2.4,v/12.92); r,g,b=l[:,0],l[:,1],l[:,2]; X=(.4124*r+.3576*g+.1805*b)/.9505; Y=.2126*r+.7152*g+.0722*b; Z=(.0193*r+.1192*g+.9505*b)/1.089
        fx,fy,fz=[torch.where(t>.008856,t.clamp(min=1e-4)**(1/3),7.787*t+16/116) for t in (X,Y,Z)]; return 116*fy-16,500*(fx-fy),200*(fy-fz)
    L,a,b=lab(x); M_,c,e=lab(y); return ((L-M_)**2+(a-c)**2+(b-e)**2+1e-6).sqrt().mean((1,2))
@d("loss",ru(3,3,34,38),ru(3,3,34,38))
def lp_ycbcr_chroma(x,y):
    f=lambda t:(.299*t[:,0]+.587*t[:,1]+.114*t[:,2],-.168736*t[:,0]-.331264*t[:,1]+.5*t[:,2]+.5,.5*t[:,0]-.418688*t[:,1]-.081312*t[:,2]+.5); a,b=f(x),f(y)
    dn=lambda t:(t[:,::2,::2]+t[:,1::2,::2]+t[:,::2,1::2]+t[:,1::2,1::2])*.25; lum=((a[0]-b[0])**2).mean((1,2)); ch=(dn(a[1])-dn(b[1])).abs().mean((1,2))+(dn(a[2])-dn(b[2])).abs().mean((1,2)); return -10*torch.log10(lum+1e-5)+.3*ch
@d("reduction",ru(6,3,25,22),ru(6,3,25,22))
def lp_soft_hist_emd(x,y):
    c=(torch.arange(16,device=x.device)+.5)/16; hh=lambda t:(torch.sigmoid((t.flatten(2)[...,None]-c+1/32)*60)-torch.sigmoid((t.flatten(2)[...,None]-c-1/32)*60)).mean(2)
    a,b=hh(x),hh(y); a=a/(a.sum(-1,keepdim=True)+1e-6); b=b/(b.sum(-1,keepdim=True)+1e-6); e=(a-b).cumsum(-1).abs().sum(-1); return e.mean(1), -(a*(a+1e-8).log2()).sum(-1)
@d("pool",rh(3,7,26,35))
def lp_morph_gradient(x):
    di=F.max_pool2d(x,3,1,1); er=-F.max_pool2d(-x,3,1,1); op=F.max_pool2d(-F.max_pool2d(-x,(3,5),1,(1,2)),(3,5),1,(1,2)); th=x-op; g=di-er; return g*torch.sigmoid(4*(g-.5))+F.relu(th)*.25, (di+er-2*x).abs().mean((2,3))
@d("pointwise",(4,29,38))
def lp_canny(x):
    p=F.pad(x[:,None],(2,2,2,2),mode="reflect")[:,0]; g=lambda t,dm:(t.narrow(dm,0,t.size(dm)-2)+2*t.narrow(dm,1,t.size(dm)-2)+t.narrow(dm,2,t.size(dm)-2))*.25
    b=g(g(p,1),2); gx=g(b[:,:,2:]-b[:,:,:-2],1); gy=g(b[:,2:]-b[:,:-2],2); m=(gx*gx+gy*gy+1e-6).sqrt(); q=F.pad(m,(1,1,1,1)); c=q[:,1:-1,1:-1]; hz=gx.abs()>2.414*gy.abs(); vt=gy.abs()>2.414*gx.abs(); dg=(gx*gy)>0
    n1=torch.where(hz,q[:,1:-1,2:],torch.where(vt,q[:,2:,1:-1],torch.where(dg,q[:,2:,2:],q[:,2:,:-2]))); n2=torch.where(hz,q[:,1:-1,:-2],torch.where(vt,q[:,:-2,1:-1],torch.where(dg,q[:,:-2,:-2],q[:,:-2,2:]))); k=(c>=n1)&(c>=n2); return torch.where(k,c,torch.zeros_like(c))*torch.sigmoid((c-.2)*10)
@d("pointwise",(2,41,45))
def lp_heat_periodic(u):
    for k in range(3): u=u+.11*(u.roll(1,1)+u.roll(-1,1)+u.roll(1,2)+u.roll(-1,2)-4*u)
    return u, (u-u.mean((1,2),keepdim=True)).square().sum((1,2))
@d("pointwise",(2,13,15,17),(2,13,15,17),ru(13,15,17))
def lp_wave3d_reflect(u,v,c):
    p=F.pad(u[:,None],(1,1,1,1,1,1),mode="replicate")[:,0]; ce=p[:,1:-1,1:-1,1:-1]; lap=p[:,2:,1:-1,1:-1]+p[:,:-2,1:-1,1:-1]+p[:,1:-1,2:,1:-1]+p[:,1:-1,:-2,1:-1]+p[:,1:-1,1:-1,2:]+p[:,1:-1,1:-1,:-2]-6*ce
    n=2*u-v+.09*(c+.5)**2*lap; n=n*(1-.02*(1-c)); return n, (.5*((n-u)/.1).square()-.5*u*lap).sum((1,2,3))
@d("pointwise",(19,131))
def lp_burgers_minmod(u):
    a=u-u.roll(1,-1); b=u.roll(-1,-1)-u; s=torch.where(a*b>0,torch.sign(a)*torch.minimum(a.abs(),b.abs()),torch.zeros_like(a)); l=u+.5*s; r=(u-.5*s).roll(-1,-1); c=torch.maximum(l.abs(),r.abs()); f=.5*(.5*l*l+.5*r*r)-.5*c*(r-l); return u-.15*(f-f.roll(1,-1))
@d("pointwise",(7,149))
def lp_weno5(q):
    a,b,c,e,f=[q.roll(k,-1) for k in (2,1,0,-1,-2)]; b0=13/12*(a-2*b+c)**2+.25*(a-4*b+3*c)**2; b1=13/12*(b-2*c+e)**2+.25*(b-e)**2; b2=13/12*(c-2*e+f)**2+.25*(3*c-4*e+f)**2
    w0=.1/(b0+1e-6)**2; w1=.6/(b1+1e-6)**2; w2=.3/(b2+1e-6)**2; h=(w0*(2*a-7*b+11*c)+w1*(-b+5*c+2*e)+w2*(2*c+5*e-f))/(6*(w0+w1+w2)); return q-.2*(h-h.roll(1,-1)), (w2/(w0+w1+w2)).mean(-1)
@d("pointwise",ru(3,24,31),(3,24,31),(3,24,31))
def lp_shallow_water(h,hu,hv):
    h=h+.5; u=hu/h; v=hv/h; p=.5*9.81*h*h; dx=lambda t:(t.roll(-1,2)-t.roll(1,2))*.5; dy=lambda t:(t.roll(-1,1)-t.roll(1,1))*.5; avg=lambda t:.25*(t.roll(1,1)+t.roll(-1,1)+t.roll(1,2)+t.roll(-1,2))
    return avg(h)-.01*(dx(hu)+dy(hv)), avg(hu)-.01*(dx(hu*u+p)+dy(hu*v))+.002*hv, avg(hv)-.01*(dx(hv*u)+dy(hv*v+p))-.002*hu
@d("pointwise",(5,22,26),(5,22,26),(5,22,26))
def lp_ns_projection(u,v,p):
    P_=lambda t:F.pad(t,(1,1,1,1)); up,vp=P_(u),P_(v); C=lambda t:t[:,1:-1,1:-1]; E=lambda t:t[:,1:-1,2:]; W=lambda t:t[:,1:-1,:-2]; N=lambda t:t[:,:-2,1:-1]; S=lambda t:t[:,2:,1:-1]
    ad=lambda t:u*torch.where(u>0,C(t)-W(t),E(t)-C(t))+v*torch.where(v>0,C(t)-N(t),S(t)-C(t)); lp=lambda t:E(t)+W(t)+N(t)+S(t)-4*C(t); us=u+.01*(-ad(up)+.1*lp(up)); vs=v+.01*(-ad(vp)+.1*lp(vp)); div=.5*(E(P_(us))-W(P_(us))+S(P_(vs))-N(P_(vs)))
    for _ in range(2): q=P_(p); p=(E(q)+W(q)+N(q)+S(q)-div)/4
    q=P_(p); return us-.5*(E(q)-W(q)), vs-.5*(S(q)-N(q)), div.abs().amax((1,2))
@d("pointwise",ru(3,30,37),ru(3,30,37),ru(3,1,1))
def lp_gray_scott(u,v,k):
    L=lambda t:.2*(t.roll((0,1),(1,2))+t.roll((0,-1),(1,2))+t.roll(1,1)+t.roll(-1,1))+.05*(t.roll((1,1),(1,2))+t.roll((1,-1),(1,2))+t.roll((-1,1),(1,2))+t.roll((-1,-1),(1,2)))-t
    r=u*v*v; f=.0545; return (u+.16*L(u)-r+f*(1-u)).clamp(0,1), (v+.08*L(v)+r-(f+.06*k)*v).clamp(0,1)
@d("reduction",rb(.5,6,9,14,15),ru(6),train=False)
def lp_ising3(s,b):
    s=s.to(torch.int32)*2-1; nb=sum(s.roll(sh,dm) for dm in (1,2,3) for sh in (1,-1)); e=-(s*nb).sum((1,2,3))//2; m=s.float().mean((1,2,3)); acc=torch.exp(-2*b.view(-1,1,1,1)*(s*nb).float()).clamp(max=1.); ck=(torch.arange(14,device=s.device)[:,None]+torch.arange(15,device=s.device))%2==0
    return e, m.abs(), torch.where((acc>.5)&ck,-s,s)
@d("pointwise",ru(9,21,27))
def lp_lbm_d2q9(f):
    f=f+.05; ex=[0,1,0,-1,0,1,-1,-1,1]; ey=[0,0,1,0,-1,1,1,-1,-1]; w=[4/9]+[1/9]*4+[1/36]*4; rho=f.sum(0); ux=(f[1]+f[5]+f[8]-f[3]-f[6]-f[7])/rho; uy=(f[2]+f[5]+f[6]-f[4]-f[7]-f[8])/rho; sq=1.5*(ux*ux+uy*uy); o=[]
    for i in range(9): cu=3*(ex[i]*ux+ey[i]*uy); o.append((f[i]-(f[i]-w[i]*rho*(1+cu+.5*cu*cu-sq))/.6).roll((ey[i],ex[i]),(0,1)))
    return torch.stack(o), rho
@d("pointwise",(29,88),(29,88))
def lp_vanleer_tvd(q,vel):
    qm,qp=q.roll(1,1),q.roll(-1,1); r=(q-qm)/torch.where((qp-q).abs()<1e-5,1e-5,qp-q); ph=(r+r.abs())/(1+r.abs()); nu=torch.tanh(vel)*.4; fl=F.relu(nu)*(q+.5*(1-nu)*ph*(qp-q))-F.relu(-nu)*qp; return q-(fl-fl.roll(1,1)), ph.mean()
@d("pointwise",(61,3),(61,))
def lp_rk4_lorenz(s,r):
    f=lambda t:torch.stack([10*(t[:,1]-t[:,0]),t[:,0]*(28+r-t[:,2])-t[:,1],t[:,0]*t[:,1]-8/3*t[:,2]],1); h=.01; k1=f(s); k2=f(s+h/2*k1); k3=f(s+h/2*k2); k4=f(s+h*k3); return s+h/6*(k1+2*k2+2*k3+k4), (k4-k1).norm(dim=1)
@d("reduction",(3,27,3),(3,27,3),ru(3,27))
def lp_nbody_leapfrog(x,v,m):
    def acc(p): dl=p[:,None]-p[:,:,None]; r2=dl.square().sum(-1)+.05**2; return (m[:,None,:,None]*dl*r2.pow(-1.5)[...,None]).sum(2)
    vh=v+.005*acc(x); xn=x+.01*vh; vn=vh+.005*acc(xn); return xn, vn, .5*(m*(vn*vn).sum(-1)).sum(1)
@d("reduction",(4,31,3))
def lp_lennard_jones(x):
    L=5.0; dl=x[:,:,None]-x[:,None]; dl=dl-L*torch.round(dl/L); r2=(dl*dl).sum(-1)+torch.eye(31,device=x.device); i6=(1/(r2+.3))**3; off=1-torch.eye(31,device=x.device); cut=(r2<2.5**2).float()*off; e=.5*(4*(i6*i6-i6)*cut).sum((1,2)); vir=(24*(2*i6*i6-i6)*cut).sum(2); return e, vir
@d("pointwise",ru(37,41),ru(37,1),ru(41))
def lp_black_scholes(s,k,t):
    S=80+40*s; K=90+20*k; T=t+.05; r,sg=.03,.2; sq=sg*T.sqrt(); d1=(torch.log(S/K)+(r+.5*sg*sg)*T)/sq; d2=d1-sq; N=lambda z:.5*(1+torch.erf(z/math.sqrt(2))); disc=torch.exp(-r*T); call=S*N(d1)-K*disc*N(d2); pdf=torch.exp(-.5*d1*d1)/math.sqrt(2*math.pi)
    return call, call-S+K*disc, N(d1), pdf/(S*sq), S*pdf*T.sqrt()/100
@d("pointwise",(83,2,3),ru(83),ru(83))
def lp_heston_steps(z,s,v):
    s=s+.5; v=v*.2
    for i in range(3): vp=F.relu(v); zs=z[:,0,i]; zv=-.7*zs+math.sqrt(1-.49)*z[:,1,i]; s=s*torch.exp((.02-.5*vp)*.01+(vp*.01+1e-8).sqrt()*zs); v=v+1.5*(.04-vp)*.01+.3*(vp*.01+1e-8).sqrt()*zv
    return F.relu(s-1).mean()*math.exp(-.02*.03), s, v
@d("scan",(11,97))
def lp_drawdown_sharpe(r):
    r=.02*torch.tanh(r); eq=torch.cumprod(1+r,1); pk=eq.cummax(1)[0] if False else eq; lw=F.max_pool1d(F.pad(eq,(20,0),value=-1e9)[:,None],21,1)[:,0]; dd=eq/lw-1; mu=r.mean(1); ds=F.relu(-r).square().mean(1).add(1e-8).sqrt(); ma=F.avg_pool1d(F.pad(eq[:,None],(9,0),mode="replicate"),10,1)[:,0]; pos=torch.tanh((eq-ma)*50)
    return mu/(r.std(1)+1e-6)*math.sqrt(252), mu/ds, dd.amin(1), (pos[:,:-1]*r[:,1:]).sum(1)-.0005*(pos[:,1:]-pos[:,:-1]).abs().sum(1)
@d("pointwise",(27,64,5))
def lp_biquad_unrolled(x):
    b0,b1,b2,a1,a2=.2066,.4131,.2066,-.3695,.1958; z1=torch.zeros_like(x[:,:,0]); z2=z1; o=[]
    for t in range(5): y=b0*x[...,t]+z1; z1=b1*x[...,t]-a1*y+z2; z2=b2*x[...,t]-a2*y; o.append(y)
    return torch.stack(o,-1), z1.abs()+z2.abs()
@d("reduction",(9,160))
def lp_overlap_add(x):
    n=torch.arange(32,device=x.device); w=.5-.5*torch.cos(2*math.pi*n/32); fr=x.unfold(1,32,16)*w; e=fr.square().mean(-1,keepdim=True); fr=fr*torch.where(e>.3,torch.rsqrt(e+1e-6)*.7,e/.3)*w; a=fr[:,:,:16]; b=fr[:,:,16:]; return (F.pad(a,(0,0,0,1))+F.pad(b,(0,0,1,0))).flatten(1), e.squeeze(-1).log10()*10
@d("reduction",(13,120),train=False)
def lp_zcr_envelope(x):
    z=((x[:,1:]*x[:,:-1])<0); zc=z.unflatten(1,(7,17)).float().mean(2); rms=x.unfold(1,24,12).square().mean(-1).sqrt(); db=20*torch.log10(rms+1e-5); gate=db>db.amax(1,keepdim=True)-6; return zc, torch.where(gate,db,-80.), (rms.amax(1)/(x.abs().amax(1)+1e-9)), gate.sum(1)
@d("pointwise",(53,71),(53,71),(53,71),ru(53,71),train=False)
def lp_adamw(p,g,m,v):
    gn=g.square().sum().sqrt(); g=g*(1.0/(gn+1e-6)).clamp(max=1.0); p=p*(1-3e-4*.1); m=m.lerp(g,.1); v=.999*v+(1-.999)*g*g; mh=m/(1-.9**7); vh=v/(1-.999**7); return p-3e-4*mh/(vh.sqrt()+1e-8), m, v, gn
@d("pointwise",rh(59,44),rh(59,44),(59,44),ru(59,44),(59,44),train=False)
def lp_lamb_mixed(p,g,m,v,master):
    gf=g.float()/1024; m=.9*m+.1*gf; v=.99*v+.01*gf.square(); u=m/.271/((v/.0297).sqrt()+1e-6)+.01*master; wn=master.norm(); un=u.norm(); tr=torch.where((wn>0)&(un>0),wn/un.clamp(min=1e-12),torch.ones_like(wn)).clamp(0,10); w=master-1e-3*tr*u; return w, w.bfloat16(), m, v, (p.float()-w).abs().max()
@d("pointwise",(4,33,46),(4,33,46),ru(4,33),ru(4,46),train=False)
def lp_adafactor(p,g,r,c):
    s=g*g+1e-30; r=.95*r+.05*s.mean(-1); c=.95*c+.05*s.mean(-2); u=g*(r/r.mean(-1,keepdim=True)).rsqrt()[...,None]*c.rsqrt()[:,None]; rms=u.square().mean((1,2),keepdim=True).sqrt(); u=u/(rms/1.0).clamp(min=1.); sc=p.square().mean((1,2),keepdim=True).sqrt().clamp(min=1e-3); return p-1e-2*sc*u, r, c
@d("pointwise",(38,61),(38,61),(38,61),(38,61),train=False)
def lp_lion_ema_lars(p,g,m,e):
    u=torch.sign(.9*m+.1*g); ok=(u*g)>0; u=torch.where(ok,u,0.)*(ok.numel()/(ok.sum()+1)); m=.99*m+.01*g; lr=1e-3*p.norm(dim=1,keepdim=True)/(g.norm(dim=1,keepdim=True)+1e-4*p.norm(dim=1,keepdim=True)+1e-9); q=p*(1-lr*.05)-lr*u; return q, m, e+(q-e)*.004, (q-p).abs().amax(0)
@d("loss",(15,33),(15,33),(15,33),(15,33))
def lp_kl_gauss_sym(m,ls,n,lt):
    vs=(2*ls.clamp(-5,3)).exp(); vt=(2*lt.clamp(-5,3)).exp(); d2=(m-n)**2; a=.5*((vs+d2)/vt-1)+lt-ls; b=.5*((vt+d2)/vs-1)+ls-lt; w2=d2+vs+vt-2*(vs*vt).sqrt(); return torch.maximum(a.sum(1)-1.0,torch.zeros_like(a[:,0])).mean(), (a+b).mul(.5).sum(1), w2.mean(0)
@d("loss",(21,3,19),(21,3,19,7),(21,3,19,7),(21,1,19))
def lp_mixture_nll(pi_,mu,ls,x):
    ls=ls.mul(.5).clamp_min(-3); lp=F.log_softmax(pi_,1)[...,None] if False else torch.log_softmax(mu[...,0]*0+pi_,1); z=(x.unsqueeze(-1)-mu)*torch.exp(-ls); ll=(-.5*z*z-ls-.9189385).sum(-1)+lp; l=torch.logsumexp(ll,1); r=torch.exp(ll-l[:,None]); return -l.mean(1), r.detach().amax(1), (r*lp).sum(1)
@d("loss",(9,47),(9,47),(9,47),rb(.8,9,47))
def lp_student_nll(x,mu,s,m):
    nu=4.0; sc=F.softplus(s)+1e-3; z=(x-mu)/sc; c=math.lgamma(2.5)-math.lgamma(2)-.5*math.log(nu*math.pi); ll=c-sc.log()-.5*(nu+1)*torch.log1p(z*z/nu); wt=((nu+1)/(nu+z*z)).detach(); return -(ll*m).sum(1)/(m.sum(1)+1), (wt*z.square()*m).sum(0)
@d("loss",(17,29),(17,29),ru(17,29))
def lp_neg_binomial(mu,th,y):
    mu=F.softplus(mu)+1e-4; th=th.clamp(-4,4).exp(); y=(y*9).round(); lt=torch.log(th+mu+1e-8); ll=th*(th.log()-lt)+y*(torch.log(mu+1e-8)-lt)+torch.lgamma(y+th)-torch.lgamma(th)-torch.lgamma(y+1); pi_=torch.sigmoid(mu-th-2.0); zi=torch.where(y<1e-8,torch.log(pi_+(1-pi_)*ll.exp()+1e-8),torch.log1p(-pi_+1e-6)+ll); return -zi.mean(1)
@d("loss",(33,4,5),(33,4,5),(33,5))
def lp_vonmises_mix(k,mu,x):
    kp=F.softplus(k)+.01; t=kp/3.75; sm=1+t**2*(3.5156+t**2*(3.0899+t**2*(1.2067+t**2*.2660))); lb=kp-.5*torch.log(2*math.pi*kp)+torch.log(.3989+.0133/(t+1e-2)+.0023/(t+1e-2)**2); li=torch.where(kp<3.75,sm.log(),lb); ll=kp*torch.cos(x[:,None]-mu)-li-math.log(2*math.pi); return -(ll.logsumexp(1)-math.log(4)).sum(-1)
@d("loss",(5,30,6,11),ru(5,6,11))
def lp_logistic_mixture(p,x):
    w,mu,s=p.chunk(3,1); s=s.clamp(min=-5.); x=(x*2-1)[:,None]; c=x-mu; iv=torch.exp(-s); a=iv*(c+1/255); b=iv*(c-1/255); cd=torch.sigmoid(a)-torch.sigmoid(b); lm=iv*c-s-2*F.softplus(iv*c)-math.log(127.5); l=torch.where(x<-.999,a-F.softplus(a),torch.where(x>.999,-F.softplus(b),torch.where(cd>1e-5,cd.clamp(min=1e-10).log(),lm))); return -torch.logsumexp(l+F.log_softmax(w,1),1).sum((1,2))
@d("loss",(14,37,9),(14,37),rb(.75,14,37))
def lp_quantile_huber_iqn(q,t,m):
    tau=(torch.arange(9,device=q.device)+.5)/9; dl=t[:,:,None]-q; h=torch.where(dl.abs()<=1,.5*dl**2,dl.abs()-.5); l=((tau-(dl<0).float()).abs()*h); cr=F.relu(q[...,:-1]-q[...,1:]); iv=q[...,-1]-q[...,0]; cov=((t>q[...,0])&(t<q[...,-1])&m).sum(1)/m.sum(1).clamp(min=1); return (l.mean(-1)*m).sum()/m.sum()+.1*cr.square().sum(-1).mean(), iv*m, cov
@d("loss",(31,23,4),(31,23))
def lp_evidential_reg(o,y):
    g,v,a,b=o.unbind(-1); v=F.softplus(v)+1e-4; a=F.softplus(a)+1.01; b=F.softplus(b)+1e-4; om=2*b*(1+v); nll=.5*torch.log(math.pi/v)-a*om.log()+(a+.5)*torch.log(v*(y-g)**2+om)+torch.lgamma(a)-torch.lgamma(a+.5); return nll+.01*(y-g).abs()*(2*v+a), b/(a-1), b/(v*(a-1))
@d("loss",(41,8),ri(9,41))
def lp_ordinal_corn(lo,y):
    k=torch.arange(8,device=lo.device); pos=(y[:,None]>k).float(); mk=(y[:,None]>=k).float(); ls=F.logsigmoid(lo); l=-(pos*ls+(1-pos)*(ls-lo))*mk; cp=torch.cumprod(torch.sigmoid(lo),1); ex=cp.sum(1); return (l.sum(0)/(mk.sum(0)+1e-6)).mean(), (ex-y).abs(), (cp>.5).sum(1)
@d("scan",(6,5,14),ri(14,6,5))
def lp_ctc_forward(lg,tg):
    lp=lg.log_softmax(-1); oh=(tg[...,None]==torch.arange(14,device=lg.device)); e=torch.where(oh[:,None],lp[:,:,None],0.).sum(-1); a=torch.where(torch.arange(5,device=lg.device)==0,e[:,0],torch.full_like(e[:,0],-1e9)); bl=lp[...,0]
    for t in range(1,5): pv=F.pad(a[:,:-1],(1,0),value=-1e9); st=a+bl[:,t,None]; mx=torch.maximum(st,pv+e[:,t]); a=mx+torch.log(torch.exp(st-mx)+torch.exp(pv+e[:,t]-mx)+1e-12)
    return -torch.logsumexp(a[:,-2:],1)
@d("loss",(7,3,24,22),(7,3,24,22),(7,30),(7,30))
def lp_elbo_freebits(xh,x,mu,lv):
    t=x.sigmoid(); rec=(F.softplus(xh)-t*xh).flatten(1).sum(1); kl=-.5*(1+lv-mu*mu-lv.exp()); fb=kl.mean(0).clamp(min=.05); act=(mu.var(0)>.01).float(); agg=.5*(mu.mean(0)**2+(mu.var(0)+lv.exp().mean(0))-1-torch.log(mu.var(0)+lv.exp().mean(0)+1e-6)); return rec.mean()/1584+fb.sum()*.5+agg.sum()*.1, rec, act.sum()
@d("loss",(5,43,17),(5,43,17),(5,43,17),ri(17,5,43),(5,),rb(.8,5,43))
def lp_grpo(lg,old,ref,a,rew,m):
    oh=(a.unsqueeze(-1)==torch.arange(17,device=lg.device)); g=lambda t:(t-t.logsumexp(-1,keepdim=True)).masked_fill(~oh,0.).sum(-1); l,o,r=g(lg),g(old).detach(),g(ref).detach(); ad=((rew-rew.mean())/(rew.std()+1e-4))[:,None]; rt=(l-o).exp(); pg=-torch.min(rt*ad,rt.clamp(.8,1.28)*ad); kl=torch.exp(r-l)-(r-l)-1; return ((pg+.04*kl)*m).sum(1).div(m.sum(1).clamp(min=1)).mean(), ((rt-1).abs()>.2).float().mul(m).mean(1)
@d("loss",(23,9),(23,9),ri(9,23),(23,),(23,),(23,))
def lp_ppo_full(lg,ol,a,v,ov,ret):
    lp=F.log_softmax(lg,-1); op=F.log_softmax(ol,-1); l=lp.gather(1,a[:,None])[:,0]; o=op.gather(1,a[:,None])[:,0]; ad=(ret-ov).detach(); ad=(ad-ad.mean())/(ad.var(unbiased=False)+1e-8).sqrt(); r=torch.exp((l-o).clamp(-10,10)); s=torch.minimum(r*ad,torch.clamp(r,.8,1.2)*ad); dc=torch.where(ad<0,torch.maximum(s,3.0*ad),s); vc=ov+(v-ov).clamp(-.2,.2); vl=.5*torch.maximum((v-ret)**2,(vc-ret)**2); en=-(lp.exp()*lp).sum(-1); return -dc.mean()+.5*vl.mean()-.01*en.mean(), 1-(ret-v).var()/(ret.var()+1e-8)
@d("scan",(13,45),(13,46),rb(.1,13,45),train=False)
def lp_gae_cumsum(r,v,dn):
    g,l=.97,.9; nd=(~dn).float(); de=r+g*v[:,1:]*nd-v[:,:-1]; t=torch.arange(45,device=r.device); dc=(g*l)**t.float(); sg=dn.flip(1).cumsum(1).flip(1)-dn.to(torch.int64); w=(sg[:,None,:]==sg[:,:,None])&(t[None,:]>=t[:,None])|(torch.eye(45,device=r.device)>0); k=dc[(t[None]-t[:,None]).abs()]; ad=(w*k*de[:,None,:]).sum(-1); return ad, ad+v[:,:-1], (ad-ad.mean())/(ad.std()+1e-6)
@d("scan",(12,6),(12,6),(12,7),(12,6))
def lp_vtrace_unrolled(lr,r,v,lp):
    rho=lr.exp(); c=rho.clamp(max=1.)*.95; rc=rho.clamp(max=1.2); de=rc*(r+.99*v[:,1:]-v[:,:-1]); acc=torch.zeros_like(v[:,0]); o=[]
    for t in range(5,-1,-1): acc=de[:,t]+.99*c[:,t]*acc; o.append(acc)
    vs=torch.stack(o[::-1],1)+v[:,:-1]; nx=torch.cat([vs[:,1:],v[:,-1:]],1); ad=(rc*(r+.99*nx-v[:,:-1])).detach(); return -(lp*ad).sum(1), .5*(vs.detach()-v[:,:-1]).square().mean(1)
@d("scan",(9,38),(9,39))
def lp_td_lambda(r,v):
    t=torch.arange(38,device=r.device,dtype=r.dtype); g=.98**t; de=(r+.98*v[:,1:]-v[:,:-1])*(.95**t)*g; rv=de.flip(-1).cumsum(-1).flip(-1)/((.98*.95)**t); rt=rv.detach()+v[:,:-1].detach(); e=(rt-v[:,:-1]); return torch.where(e.abs()<1,.5*e*e,e.abs()-.5).mean(1), rt
@d("loss",(11,26),(11,26),(11,26),(11,26),rb(.85,2,11,26))
def lp_dpo_family(pc,pr,rc,rr,m):
    f=lambda t,k:(F.logsigmoid(t)*m[k]).sum(-1); a=f(pc,0)-f(rc,0); b=f(pr,1)-f(rr,1); h=a-b; dpo=-F.logsigmoid(.1*h)*.95-F.logsigmoid(-.1*h)*.05; ipo=(h-1/(2*.1))**2; kl=(.5*(a+b)).mean().clamp(min=0).detach(); kto=torch.stack([1-torch.sigmoid(.1*(a-kl)),1-torch.sigmoid(.1*(kl-b))]); lc=f(pc,0)/m[0].sum(-1).clamp(min=1); lr=f(pr,1)/m[1].sum(-1).clamp(min=1); od=lc-lr-(torch.log1p(-lc.exp()+1e-6)-torch.log1p(-lr.exp()+1e-6)); return dpo, ipo, kto.mean(0), -F.logsigmoid(od), (h>0).float().mean()
@d("loss",(19,5,21),(19,21),ri(5,19),(19,),rb(.2,19))
def lp_c51(lg,nx,a,r,dn):
    z=torch.linspace(-4,4,21,device=lg.device); tz=(r[:,None]+.9*(~dn).float()[:,None]*z).clamp(-4,4); b=(tz[:,:,None]-z).abs()/.4; w=(1-b).clamp(0,1); tp=(w*F.softmax(nx,-1)[:,:,None]).sum(1).detach(); lp=lg.log_softmax(-1); s=(lp*(a[:,None]==torch.arange(5,device=lg.device)).unsqueeze(-1)).sum(1); q=(lp.exp()*z).sum(-1); return -(tp*s).sum(1), q, q.argmax(1)
@d("reduction",(6,31,13),rb(.7,6,31,13))
def lp_masked_moments(x,m):
    n=m.sum((0,1),keepdim=True).clamp(min=2); xm=x.masked_fill(~m,0.); mu=xm.sum((0,1),keepdim=True)/n; c=(x-mu)*m; v=c.pow(2).sum((0,1),keepdim=True)/(n-1); z=c*torch.rsqrt(v+1e-6); sk=z.pow(3).sum((0,1))/n[0,0]; ku=(z**4).sum((0,1))/n[0,0]-3; mx=x.masked_fill(~m,-1e30).amax((0,1)); jb=n[0,0]/6*(sk**2+.25*ku**2); return z, jb, mx-mu[0,0]
@d("reduction",(8,39),ru(8,39))
def lp_lambdarank(s,y):
    y=(y*4).floor(); dl=s[:,:,None]-s[:,None]; rk=1+torch.sigmoid(-dl*5).sum(-1)-.5; g=2**y-1; dc=1/torch.log2(rk+1); idl=(g[:,:,None]<g[:,None]).sum(-1)+1.; mg=(g/torch.log2(idl+1)).sum(1); hi=(y[:,:,None]>y[:,None]).float(); w=((g[:,:,None]-g[:,None])*(dc[:,:,None]-dc[:,None])).abs().detach()/(mg[:,None,None]+1e-6); return (hi*w*F.softplus(-dl)).sum((1,2)), (g*dc).sum(1)/(mg+1e-6)
@d("reduction",(67,11),ri(6,67),train=True)
def lp_segment_softmax(x,seg):
    oh=(seg[:,None]==torch.arange(6,device=x.device)); mx=torch.where(oh[...,None],x[:,None],float("-inf")).amax(0); mx=torch.where(torch.isinf(mx),torch.zeros_like(mx),mx); e=torch.exp(x-torch.where(oh[...,None],mx,0.).sum(1)); d_=(e[:,None]*oh[...,None]).sum(0); p=e/((d_*oh[...,None]).sum(1)+1e-9); mean=(x[:,None]*oh[...,None]).sum(0)/oh.sum(0).clamp(min=1)[:,None]; return p, mean, -(p*(p+1e-9).log())[:,None].mul(oh[...,None]).sum(0)
@d("reduction",(3,4,14,15,8),(3,4,14,15,8),(3,4,14,15,8),(9,))
def lp_neighbourhood_attn(q,k,v,bias):
    pd=lambda t:F.pad(t,(0,0,1,1,1,1)); kp,vp=pd(k),pd(v); sc=[];vs=[]
    for i in range(3):
        for j in range(3): sc.append((q*kp[:,:,i:i+14,j:j+15]).sum(-1)*8**-.5+bias[3*i+j]); vs.append(vp[:,:,i:i+14,j:j+15])
    p=torch.stack(sc,-1).softmax(-1); return sum(p[...,n:n+1]*vs[n] for n in range(9))
@d("pointwise",rh(3,26,6,34),train=True)
def lp_rope_ntk_half(x):
    d_=24; f=1.0/((10000*4.0**(d_/(d_-2)))**(torch.arange(0,d_,2,device=x.device).float()/d_)); wl=2*math.pi/f; rmp=((wl/(26)-1)/(32-1)).clamp(0,1); f=f/4*rmp+f*(1-rmp); an=torch.arange(26,device=x.device)[:,None].float()*f; c=an.cos()[:,None]; s=an.sin()[:,None]; r,p=x[...,:24].float(),x[...,24:]; a,b=r[...,::2],r[...,1::2]; y=torch.stack([a*c-b*s,a*s+b*c],-1).flatten(-2); n=y*torch.rsqrt(y.square().mean(-1,keepdim=True)+1e-6); return torch.cat([n.to(x.dtype),p],-1).transpose(1,2)
@d("pointwise",ri(2**31-1,31,12),rf(31,3),rf(31,3),train=False)
def lp_dequant_int4_groups(w,s,z):
    sh=torch.arange(0,32,4,device=w.device); q=((w[...,None]>>sh)&15).flatten(1); q=torch.where(q>=8,q-16,q).half(); g=q.unflatten(1,(3,32)); y=(g-z[:,:,None].float().round().half())*s[:,:,None]; o=y.abs().amax(-1); return y.flatten(1), o, (y.float().square().mean(-1)+1e-6).sqrt()
@d("pointwise",ri(2**31-1,27,113),train=False)
def lp_murmur_popcount(h):
    M_=0xffffffff; h=(h*0xcc9e2d51)&M_; h=((h<<15)|(h>>17))&M_; h=(h*0x1b873593)&M_; h=h^(h>>16); h=(h*0x85ebca6b)&M_; h=h^(h>>13); v=h-((h>>1)&0x55555555); v=(v&0x33333333)+((v>>2)&0x33333333); v=(v+(v>>4))&0x0f0f0f0f; pc=((v*0x01010101)&M_)>>24; return h%97, pc, (h.float()/2**32*2-1), (pc&1).sum(1)
@d("reduction",ri(9,14,23,17),train=False)
def lp_arg_ties(x):
    mx=x.amax(-1,keepdim=True); tie=x==mx; i=torch.arange(17,device=x.device); first=torch.where(tie,i,17).amin(-1); last=torch.where(tie,i,-1).amax(-1); sec=torch.where(tie,-1,x).amax(-1); return first, last, tie.sum(-1), mx.squeeze(-1)-sec, (x.argmin(1)+x.argmax(1))%5
@d("scan",(5,28,19),rb(.85,5,28,19))
def lp_scan_mix(x,m):
    xm=x*m; f=xm.cumsum(1); ex=f-xm; rv=xm.flip(1).cumsum(1).flip(1); n=m.cumsum(1); lc=torch.logcumsumexp(x.masked_fill(~m,-30.),1); rm=f/n.clamp(min=1); var=((xm*xm).cumsum(1)/n.clamp(min=1)-rm*rm).clamp(min=0); return (x-rm)/(var+1e-3).sqrt()*m, ex-rv*.5, lc-torch.log(n+1.)
@d("pointwise",ri(800000,21,139),train=False)
def lp_civil_from_days(z):
    z=z+719468; era=torch.div(z,146097,rounding_mode="floor"); doe=z-era*146097; yoe=(doe-doe//1460+doe//36524-doe//146096)//365; doy=doe-(365*yoe+yoe//4-yoe//100); mp=(5*doy+2)//153; dd=doy-(153*mp+2)//5+1; mo=torch.where(mp<10,mp+3,mp-9); yr=yoe+era*400+(mo<=2).long(); leap=((yr%4==0)&(yr%100!=0))|(yr%400==0); dow=(z-719468+4)%7; return yr,mo,dd,leap,dow,torch.sin(2*math.pi*(doy.float()+.5)/365.2425)
@d("norm",(4,5,12,13,9))
def lp_entmax_bisect(x):
    x=x*.5; mx=x.amax((1,4),keepdim=True); lo=mx-1; dm=1-(1/45)**.5
    for _ in range(6): dm=dm/2; tm=lo+dm; f=F.relu(x-tm).square().sum((1,4),keepdim=True)-1; lo=torch.where(f>=0,tm,lo)
    p=F.relu(x-lo.detach()).square(); return p/p.sum((1,4),keepdim=True)
@d("norm",(13,22,18),train=True)
def lp_sparsemax_pairwise(z):
    z=z-z.amax(1,keepdim=True); ge=(z[:,None]>=z[:,:,None]).float(); k=ge.sum(2); cs=(ge*z[:,None]).sum(2); ok=(1+k*z)>cs; kk=torch.where(ok,k,0.).amax(1,keepdim=True); ss=torch.where(ok,z,0.).sum(1,keepdim=True); tau=(ss-1)/kk; p=F.relu(z-tau); return p, .5*(p*(z-tau)).sum(1)
@d("norm",rh(5,6,7,15,11))
def lp_sandwich_norm5(x):
    y=x.float(); mu=y.mean((2,4),keepdim=True); z=(y-mu)/(y.var((2,4),keepdim=True,unbiased=False)+1e-5).sqrt(); g=torch.sqrt(z.square().sum((3,),keepdim=True)+1e-6); n=g/(g.mean(2,keepdim=True)+1e-6); w=(z*n+z).to(x.dtype); l1=w.abs().float().sum(1,keepdim=True); return (w/(l1+.1)).to(x.dtype)*F.silu(x)
@d("norm",rf(6,24,10,14),(24,),(24,))
def lp_filter_response_tlu(x,g,t):
    y=x.float(); nu=y.pow(2).mean((2,3),keepdim=True); e=F.softplus(t).view(1,-1,1,1)*1e-2; a=y*(nu+e).rsqrt()*g[:,None,None]; b=a.view(6,4,6,10,14); s=b.mean((2,3,4),keepdim=True); o=torch.maximum((b-s).reshape_as(y),t[None,:,None,None]); return o.half(), (o-y).abs().amax((0,2,3))
@d("norm",(7,3,33,21),ru(7,3,33,21))
def lp_gumbel_two_axes(x,u):
    g=-torch.log(-torch.log(u*.998+1e-3)); y=(x+g)/.67; p=torch.softmax(y.flatten(2),-1).view_as(x); h=(p==p.amax((2,3),keepdim=True)).to(p.dtype); st=h-p.detach()+p; q=F.log_softmax(x.transpose(1,3),-1).transpose(1,3); kl=(p*((p+1e-20).log()-q)).sum((2,3)); return st*x.tanh(), kl, st.sum(1)
@d("loss",rh(3,61,4),rh(3,61,4),rb(.8,3,61))
def lp_diou_half(p,t,m):
    p=p.float(); t=t.float(); p=torch.cat([torch.minimum(p[...,:2],p[...,2:]),torch.maximum(p[...,:2],p[...,2:])],-1); t=torch.cat([torch.minimum(t[...,:2],t[...,2:]),torch.maximum(t[...,:2],t[...,2:])+.1],-1)
    wh=(torch.minimum(p[...,2:],t[...,2:])-torch.maximum(p[...,:2],t[...,:2])).clamp_min(0); i=wh[...,0]*wh[...,1]; ar=lambda b:(b[...,2]-b[...,0])*(b[...,3]-b[...,1]); iou=i/(ar(p)+ar(t)-i+1e-5); d2=.25*((p[...,:2]+p[...,2:]-t[...,:2]-t[...,2:])**2).sum(-1); c2=((torch.maximum(p[...,2:],t[...,2:])-torch.minimum(p[...,:2],t[...,:2]))**2).sum(-1)+1e-5; return ((1-iou.pow(3)+d2/c2)*m).sum(-1)/(m.sum(-1)+1)
@d("reduction",(4,37,4),(4,23,4),rb(.8,4,23),train=False)
def lp_pair_iou_assign(a,g,m):
    a=torch.cat([a[...,:2],a[...,:2]+a[...,2:].abs()+.2],-1); g=torch.cat([g[...,:2],g[...,:2]+g[...,2:].abs()+.2],-1); wh=(torch.minimum(a[:,:,None,2:],g[:,None,:,2:])-torch.maximum(a[:,:,None,:2],g[:,None,:,:2])).clamp(min=0); i=wh.prod(-1); u=(a[...,2:]-a[...,:2]).prod(-1)[:,:,None]+(g[...,2:]-g[...,:2]).prod(-1)[:,None]-i; iou=(i/u).masked_fill(~m[:,None],-1.); best,ix=iou.max(-1); gb=iou.amax(1,keepdim=True); low=((iou==gb)&(iou>.05)).any(-1); lab=torch.where((best>=.5)|low,1,torch.where(best<.3,0,-1)); return lab, ix, best
@d("loss",(6,33,4,9),(6,33,4))
def lp_dfl_ltrb(p,t):
    t=(t.abs()*3).clamp(0,7.99); pr=p.softmax(-1); pj=torch.arange(9,device=p.device,dtype=p.dtype); dist=(pr*pj).sum(-1); lo=t.floor(); wl=lo+1-t; lp=F.log_softmax(p,-1); tg=torch.relu(1-(t[...,None]-pj).abs()); l=-(tg*lp).sum(-1); l_,tp,rt,bt=dist.unbind(-1); cen=((torch.minimum(l_,rt)/torch.maximum(l_,rt).clamp(min=.1))*(torch.minimum(tp,bt)/torch.maximum(tp,bt).clamp(min=.1))+1e-6).sqrt(); ent=-(pr*lp).sum(-1); return (l*(1+wl*(1-wl))).mean(-1)*cen.detach(), ent.mean(1), cen
@d("loss",(3,7,28,33),ru(3,7,28,33))
def lp_centernet_focal(x,h):
    p=x.sigmoid().clamp(1e-4,1-1e-4); h=torch.where(h>.97,torch.ones_like(h),h*.95); pos=h.eq(1).float(); pl=(p.log()*(1-p)**2*pos); nl=torch.log(1-p)*p.pow(2)*(1-h).pow(4)*(1-pos); n=pos.sum((1,2,3)).clamp(min=1); pk=(F.max_pool2d(p,3,1,1)==p).float()*p; return -(pl.sum((1,2,3))+nl.sum((1,2,3)))/n, pk.detach().amax((2,3))
@d("pool",(3,11,26,29),(3,2,26,29),train=False)
def lp_heatmap_peaks(h,off):
    s=torch.sigmoid(h); mx=F.max_pool2d(s,5,1,2); k=(mx-s).abs()<1e-6; v=torch.where(k,s,0.); p=F.pad(s,(1,1,1,1),mode="replicate"); dx=.5*(p[:,:,1:-1,2:]-p[:,:,1:-1,:-2]); dy=.5*(p[:,:,2:,1:-1]-p[:,:,:-2,1:-1]); dxx=p[:,:,1:-1,2:]+p[:,:,1:-1,:-2]-2*s; dyy=p[:,:,2:,1:-1]+p[:,:,:-2,1:-1]-2*s; ox=-dx/torch.where(dxx.abs()<1e-4,-1e-4,dxx); oy=-dy/torch.where(dyy.abs()<1e-4,-1e-4,dyy); sc,ci=v.max(1); return sc, ci, (ox.clamp(-.5,.5)+off[:,:1])*k, (oy.clamp(-.5,.5)+off[:,1:])*k
@d("pointwise",(8,47,6))
def lp_rot6d(x):
    a,b=x[...,0::2],x[...,1::2]; e1=a/(a.square().sum(-1,keepdim=True).sqrt()+1e-6); b=b-(e1*b).sum(-1,keepdim=True)*e1; e2=b/b.norm(dim=-1,keepdim=True).clamp_min(1e-6); e3=torch.stack([e1[...,1]*e2[...,2]-e1[...,2]*e2[...,1],e1[...,2]*e2[...,0]-e1[...,0]*e2[...,2],e1[...,0]*e2[...,1]-e1[...,1]*e2[...,0]],-1); tr=e1[...,0]+e2[...,1]+e3[...,2]; an=torch.acos(((tr-1)/2).clamp(-.999,.999)); return torch.stack([e1,e2,e3],-1), an, (x.norm(dim=-1)-2**.5)**2
@d("pointwise",(5,79,3),(5,79,3))
def lp_rodrigues(w,v):
    th2=(w*w).sum(-1,keepdim=True)+1e-8; th=th2.sqrt(); sm=th<.05; A=torch.where(sm,1-th2/6+th2*th2/120,torch.sin(th)/th); B=torch.where(sm,.5-th2/24,(1-torch.cos(th))/th2); cr=lambda p,q:p.roll(-1,-1)*q.roll(1,-1)-p.roll(1,-1)*q.roll(-1,-1); c1=cr(w,v); c2=cr(w,c1); r=v+A*c1+B*c2; C=(1-A)/th2; return r, v+B*c1+C*c2, (r*v).sum(-1)/(v.square().sum(-1)+1e-6)
@d("loss",(29,4),(29,17,3),(29,17,2),rb(.8,29,17))
def lp_reprojection_fisheye(q,X,uv,m):
    q=F.normalize(q,dim=1); x,y,z=X.unbind(-1); r=torch.hypot(x,y)+1e-4; th=torch.atan2(r,z.abs()+.2); t2=th*th; td=th*(1+t2*(.03+t2*(-.012+t2*(.004-.0006*t2)))); u=td*x/r*(1+.1*q[:,:1]); v=td*y/r*(1+.1*q[:,1:2]); e2=(u-uv[...,0])**2+(v-uv[...,1])**2; s2=.5**2; gm=e2/(e2+s2); w=(s2/(e2+s2)).square().detach(); return (gm*m).sum(1)/(m.sum(1)+1e-6)+1e-3*(q[:,2]*q[:,3]).abs(), (w*m).sum(0)
@d("loss",ru(4,1,23,31),ru(4,3,23,31),(4,3,23,31),train=True)
def lp_photometric_ssim_smooth(dsp,x,y):
    ap=lambda t:F.avg_pool2d(F.pad(t,(1,1,1,1),mode="reflect"),3,1); mx,my=ap(x),ap(y); sx=ap(x*x)-mx*mx; sy=ap(y*y)-my*my; sxy=ap(x*y)-mx*my; ss=((2*mx*my+1e-4)*(2*sxy+9e-4))/((mx**2+my**2+1e-4)*(sx+sy+9e-4)); ph=(.85*((1-ss)/2).clamp(0,1)+.15*(x-y).abs()).mean(1,True); dn=dsp/(dsp.mean((2,3),True)+1e-7); ed=(dn[...,1:]-dn[...,:-1]).abs()*torch.exp(-(x[...,1:]-x[...,:-1]).abs().mean(1,True)); ev=(dn[:,:,1:]-dn[:,:,:-1]).abs()*torch.exp(-(x[:,:,1:]-x[:,:,:-1]).abs().mean(1,True)); return ph.mean((1,2,3))+1e-3*(ed.mean((1,2,3))+ev.mean((1,2,3))), ph
@d("loss",(3,5,18,25,2),ru(3,5,18,25))
def lp_flow_census(f,o):
    dx=f[:,:,:,1:]-f[:,:,:,:-1]; dy=f[:,:,1:]-f[:,:,:-1]; dt=f[:,1:]-f[:,:-1]; ch=lambda t:(t*t+1e-6)**.45; div=dx[:,:,:-1,:,0]+dy[:,:,:,:-1,1]; curl=dx[:,:,:-1,:,1]-dy[:,:,:,:-1,0]; w=(1-o)[...,None]; return (ch(dx)*w[:,:,:,1:]).mean((2,3,4))+(ch(dy)*w[:,:,1:]).mean((2,3,4)), ch(dt).sum(-1).mean((2,3)), (div.square()+.5*curl.square()).sum((2,3))
@d("pointwise",(2,9,11,13,10))
def lp_wave4d_mixed_border(u):
    l=u.roll(1,1)+u.roll(-1,1)-2*u; p=F.pad(u,(1,1)); l=l+p[...,2:]+p[...,:-2]-2*u; up=torch.cat([u[:,:,1:],u[:,:,-1:]],2); dn=torch.cat([u[:,:,:1],u[:,:,:-1]],2); l=l+up+dn-2*u; l=l+torch.cat([u[:,:,:,1:2]-u[:,:,:,:1],.5*(u[:,:,:,2:]-u[:,:,:,:-2]),u[:,:,:,-1:]-u[:,:,:,-2:-1]],3); v=u+.03*l-.1*u*(u*u-1); return v, (v-u).square().mean((1,2,3,4)), torch.tanh(l).sum((3,4))
@d("pointwise",(3,27,33),(3,27,33))
def lp_cahn_hilliard(c,k):
    L=lambda t:t.roll(1,-1)+t.roll(-1,-1)+t.roll(1,-2)+t.roll(-1,-2)-4*t; mu=c**3-c-.25*L(c); mob=torch.sigmoid(k)*(1-c*c).clamp(min=.05); fx=.5*(mob+mob.roll(-1,-1))*(mu.roll(-1,-1)-mu); fy=.5*(mob+mob.roll(-1,-2))*(mu.roll(-1,-2)-mu); n=c+.02*(fx-fx.roll(1,-1)+fy-fy.roll(1,-2)); gx=c.roll(-1,-1)-c; return n, (.25*(c*c-1)**2+.125*gx*gx).mean((-1,-2)), n.sum((1,2))-c.sum((1,2))
@d("pointwise",(4,32,29))
def lp_perona_malik_tv(x):
    for k in (.3,.2): 
        p=F.pad(x.unsqueeze(1),(1,1,1,1),mode="replicate").squeeze(1); ds=[p[:,1:-1,2:]-x,p[:,1:-1,:-2]-x,p[:,2:,1:-1]-x,p[:,:-2,1:-1]-x]; x=x+.2*sum(t*torch.exp(-(t/k).square()) if i<2 else t/(1+(t/k)**2) for i,t in enumerate(ds))
    gx=x[:,:-1,1:]-x[:,:-1,:-1]; gy=x[:,1:,:-1]-x[:,:-1,:-1]; return x, torch.sqrt(gx*gx+gy*gy+1e-5).sum((1,2))
@d("pointwise",ru(3,3,119),(3,1,119))
def lp_euler1d_hll(w,pert):
    rho=w[:,0]+.3; u=w[:,1]-.5+.01*pert[:,0]; p=w[:,2]+.2; E=p/.4+.5*rho*u*u; U=torch.stack([rho,rho*u,E],1); Fx=torch.stack([rho*u,rho*u*u+p,u*(E+p)],1); c=torch.sqrt(1.4*p/rho); r=lambda t:torch.cat([t[...,1:],t[...,-1:]],-1); sl=torch.minimum(u-c,r(u-c)).clamp(max=-1e-3)[:,None]; sr=torch.maximum(u+c,r(u+c)).clamp(min=1e-3)[:,None]; fl=(sr*Fx-sl*r(Fx)+sl*sr*(r(U)-U))/(sr-sl); return U[...,1:-1]-.1*(fl[...,1:-1]-fl[...,:-2]), (u.abs()+c).amax(-1)
@d("pointwise",(2,19,16,18,3),train=True)
def lp_curl_curl_yee(E):
    fd=lambda t,a:torch.roll(t,-1,a)-t; bd=lambda t,a:t-torch.roll(t,1,a); ex,ey,ez=E.unbind(-1); hx=-.3*(fd(ez,2)-fd(ey,3)); hy=-.3*(fd(ex,3)-fd(ez,1)); hz=-.3*(fd(ey,1)-fd(ex,2)); nx=ex+.3*(bd(hz,2)-bd(hy,3)); ny=ey+.3*(bd(hx,3)-bd(hz,1)); nz=ez+.3*(bd(hy,1)-bd(hx,2)); dv=bd(nx,1)+bd(ny,2)+bd(nz,3); return torch.stack([nx,ny,nz],-1)-.1*dv[...,None], (hx**2+hy**2+hz**2).sum((1,2,3))
@d("pointwise",(4,36,2,15),(4,36,15))
def lp_verlet_chain(x,m):
    q,p=x.unbind(2); im=torch.exp(-.3*m); frc=lambda t:(lambda e:e+e*e*e*.2)(F.pad(t[:,1:]-t[:,:-1],(0,0,0,1)))-(lambda e:e+e*e*e*.2)(F.pad(t[:,1:]-t[:,:-1],(0,0,1,0)))-.1*torch.sin(t); 
    for c,dd in ((.6756,1.3512),(-.1756,-1.7024)): q=q+c*.05*p*im; p=p+dd*.05*frc(q)
    return q, p, (.5*p*p*im).sum(1)+(.1*(1-torch.cos(q))).sum(1)
@d("pointwise",(43,37),(43,37),(37,))
def lp_dopri_error(y,u,a):
    f=lambda t:-a*t*(1-torch.tanh(t))+.3*u; h=.07; k1=f(y); k2=f(y+h*.2*k1); k3=f(y+h*(3/40*k1+9/40*k2)); k4=f(y+h*(44/45*k1-56/15*k2+32/9*k3)); yn=y+h*(35/384*k1+500/1113*k3+.4*k4); er=h*(71/57600*k1-71/16695*k3+.03*k4); tol=1e-4+1e-3*torch.maximum(y.abs(),yn.abs()); en=(er/tol).square().mean(-1).sqrt(); return yn, en, (.9*(en+1e-8)**-.2).clamp(.2,10)
@d("scan",(8,111),ru(8,111))
def lp_vwap_bands(r,v):
    p=torch.exp(.01*r.cumsum(1))*100; v=v+.05; cv=v.cumsum(1); vw=(p*v).cumsum(1)/cv; vr=((p*p*v).cumsum(1)/cv-vw*vw).clamp(min=1e-4); z=(p-vw)/vr.sqrt(); up=F.relu(p[:,1:]-p[:,:-1]); dn=F.relu(p[:,:-1]-p[:,1:]); au=up.unfold(1,14,1).mean(-1); ad=dn.unfold(1,14,1).mean(-1); rsi=100-100/(1+au/(ad+1e-3)); hi=F.max_pool1d(p[:,None],14,1)[:,0]; lo=-F.max_pool1d(-p[:,None],14,1)[:,0]; st=(p[:,13:]-lo)/(hi-lo+1e-3); return z, rsi*.01-st[:,1:], (torch.tanh(z[:,14:])*(rsi<30).float()[:,:-0 or None]).mean(1)
@d("scan",(7,6,83),train=True)
def lp_logsig_iss(x):
    dx=x[...,1:]-x[...,:-1]; c=dx.cumsum(-1)-dx; s2=(c[:,:,None]*dx[:,None]).sum(-1); lev=.5*(s2-s2.transpose(1,2)); tot=dx.sum(-1); e=(s2+s2.mT-tot[:,:,None]*tot[:,None]); n=(dx*dx).sum(-1); return tot, lev, e.diagonal(dim1=1,dim2=2)+n, torch.sign(lev)*torch.log1p(lev.abs())
@d("pointwise",(9,3,96),train=True)
def lp_compressor_softknee(x):
    e=x.abs().mean(1); db=20*torch.log10(e+1e-4); T,Rt,W=-12.,4.,6.; ov=db-T; g=torch.where(2*ov<-W,torch.zeros_like(ov),torch.where(2*ov.abs()<=W,(1/Rt-1)*(ov+W/2)**2/(2*W),(1/Rt-1)*ov)); sm=g
    for k in (1,2,4): sm=torch.lerp(sm,F.pad(sm,(k,0))[:,:-k],.4)
    y=x*(10**((sm+3)/20))[:,None]; return torch.where(y.abs()>1,torch.sign(y)*(2-1/y.abs().clamp(min=1.)),y), (y.square().mean((1,2))+1e-9).sqrt()/(e.amax(1)+1e-4)
@d("reduction",(6,128),train=True)
def lp_lpc_autocorr(x):
    w=.54-.46*torch.cos(2*math.pi*torch.arange(128,device=x.device)/127); y=(x-.97*F.pad(x,(1,0))[:,:-1])*w; r=[(y[:,k:]*y[:,:128-k]).sum(1) for k in range(4)]; e=r[0]*1.001+1e-6; k1=r[1]/e; e1=e*(1-k1*k1); k2=(r[2]-k1*r[1])/(e1+1e-6); a1=k1-k2*k1; e2=e1*(1-k2*k2); res=y[:,2:]-a1[:,None]*y[:,1:-1]-k2[:,None]*y[:,:-2]; return res, torch.log(e2.abs()+1e-6), torch.stack([torch.atanh(k1.clamp(-.9,.9)),torch.atanh(k2.clamp(-.9,.9))],1)
@d("reduction",(7,61),(7,61),train=False)
def lp_yin_difference(x,y):
    f=x.unfold(1,30,5); sh=[(f[...,:20]-f[...,t:t+20]).square().sum(-1) for t in range(1,9)]; dd=torch.stack(sh,-1); cm=dd*torch.arange(1,9,device=x.device)/(dd.cumsum(-1)+1e-6); mn,ix=cm.min(-1); below=cm<.9; first=torch.where(below,torch.arange(8,device=x.device),8).amin(-1); return torch.where(first<8,first,ix), mn, (x*y).sum(1)/(x.norm(dim=1)*y.norm(dim=1)+1e-8)
@d("pointwise",rh(47,38),(47,38),ru(47,38),(47,38),train=False)
def lp_nadam_amsgrad_bf16(g,m,v,w):
    gf=g.float(); bad=torch.isnan(gf)|torch.isinf(gf); gf=torch.where(bad,torch.zeros_like(gf),gf)/128; gc=gf-gf.mean(1,keepdim=True); m=.9*m+.1*gc; nv=.99*v+.01*gc*gc; vm=torch.maximum(v,nv); mh=(.9*m/(1-.9**4)+.1*gc/(1-.9**3)); up=mh/(vm.sqrt()/math.sqrt(1-.99**3)+1e-8); nr=up.norm(dim=1,keepdim=True); up=up*torch.where(nr>2.,2./nr,1.); pj=(w*up).sum(1,keepdim=True)/(w.square().sum(1,keepdim=True)+1e-8); return w-.002*(up-pj*w)-1e-5*w, m, nv, vm, bad.any()
@d("pointwise",(31,40),(31,40),ru(31),ru(40),(31,40),train=False)
def lp_shampoo_diag_graft(p,g,l,r,mom):
    l=l+(g*g).sum(1); r=r+(g*g).sum(0); pre=g*(l+1e-6).pow(-.25)[:,None]*(r+1e-6).pow(-.25); gn=g.norm(); pn=pre.norm(); pre=pre*(gn/(pn+1e-12)); mom=.9*mom+pre; nest=pre+.9*mom; cs=(mom*g).sum()/(mom.norm()*gn+1e-12); return p*(1-1e-4)-.01*torch.where(cs>0,nest,pre), l, r, mom, cs
@d("pointwise",(18,67),(18,67),ru(18,67),ru(18,67),train=False)
def lp_sophia_adan(p,g,h,n):
    pg=g.roll(1,0)*.9; df=g-pg; m=.98*pg+.02*g; vd=.92*df.roll(2,1)+.08*df; n=.99*n+.01*(g+.92*df).square(); h=.95*h+.05*g*g*18; so=(m/(.04*h).clamp(min=1e-12)).clamp(-1,1); wr=(so.abs()>=1).float().mean(); ad=(m+.92*vd)/(n.sqrt()+1e-8); b=(p.abs().amax(1,keepdim=True)>1.5); return torch.where(b,p-1e-3*so,(p-1e-3*ad)/(1+1e-3*.02)), h, n, wr
@d("norm",(3,4,9,14,17),(4,9),(4,9),train=True)
def lp_switchable_norm5(x,w,b):
    mi=x.mean((3,4),keepdim=True); vi=x.var((3,4),keepdim=True); ml=mi.mean((1,2),keepdim=True); vl=(vi+mi*mi).mean((1,2),keepdim=True)-ml*ml; mb=mi.mean(0,keepdim=True); vb=(vi+mi**2).mean(0,keepdim=True)-mb**2; pw=w.flatten()[:3].softmax(0); pv=b.flatten()[-3:].softmax(0); mu=pw[0]*mi+pw[1]*ml+pw[2]*mb; va=pv[0]*vi+pv[1]*vl+pv[2]*vb; return (x-mu)/(va+1e-5).sqrt()*w[...,None,None]+b[:,:,None,None]
@d("norm",rh(7,33,5,26),train=True)
def lp_qknorm_power_minmax(x):
    q,k,v,g,z=x.unbind(2); qn=q*torch.rsqrt(q.float().pow(2).mean(-1,keepdim=True)+1e-5).to(q.dtype); kn=F.normalize(k.float(),p=3.0,dim=1).to(k.dtype); mn,mx=v.aminmax(dim=1,keepdim=True) if False else (v.amin(1,keepdim=True),v.amax(1,keepdim=True)); vn=(v-mn)/(mx-mn+1e-2); p=torch.sign(z)*z.abs().add(.01).sqrt(); return (qn*kn).sum(-1,keepdim=True)*vn*torch.sigmoid(g)+p, (qn-kn).float().abs().mean((1,2))
@d("norm",(5,8,21,19),train=True)
def lp_robust_zscore(x):
    m=x.mean((1,3),keepdim=True); dv=(x-m).abs(); s=dv.mean((1,3),keepdim=True)*1.2533+1e-5; w=torch.where(dv<1.345*s,torch.ones_like(x),1.345*s/dv.clamp(min=1e-6)).detach(); m2=(w*x).sum((1,3),keepdim=True)/w.sum((1,3),keepdim=True); s2=((w*(x-m2)**2).sum((1,3),keepdim=True)/w.sum((1,3),keepdim=True)+1e-6).sqrt(); z=(x-m2)/s2; return z.clamp(-3,3)+.01*z, (z.abs()>3).float().mean((0,2))
@d("loss",rh(9,31,22),rh(9,31,22),rb(.7,9,31))
def lp_jsd_distill_half(s,t,m):
    T=2.5; ls=F.log_softmax(s.float()/T,-1); lt=F.log_softmax(t.float()/T,-1); mx=torch.logaddexp(ls,lt)-math.log(2); js=.5*((ls.exp()*(ls-mx)).sum(-1)+(lt.exp()*(lt-mx)).sum(-1)); co=(1-(lt.exp()*lt).sum(-1)/-math.log(22)).clamp(0,1).detach(); top=(t==t.amax(-1,keepdim=True)); ac=(top&(s==s.amax(-1,keepdim=True))).any(-1); return (js*co*m).sum(1)*T*T/m.sum(1).clamp(min=1), (ac&m).sum(1), ls[...,0]
@d("loss",rh(13,41,2,9),ri(9,13,41),ru(13,41))
def lp_poly_focal_label_smooth(x,y,w):
    lg=(x[:,:,0].float()+x[:,:,1].float().tanh()*.3); c=torch.arange(9,device=x.device); oh=(y[...,None]==c).float(); tg=oh*.9+.1/9; ls=lg-lg.logsumexp(-1,keepdim=True); p=ls.exp(); pt=(p*oh).sum(-1); ce=-(tg*ls).sum(-1); fo=(1-pt).pow(1.5)*ce; br=(p-oh).square().sum(-1); z=lg.logsumexp(-1).square()*1e-4; l=fo+1.0*(1-pt)+.2*br+z; k=(ce>ce.mean(1,keepdim=True)).float(); return (l*w*(.5+.5*k)).sum(1)/w.sum(1), pt, p.mean((0,1))
@d("loss",(21,16),(21,16),ri(5,21),train=True)
def lp_supcon_circle(a,b,y):
    z=F.normalize(a+.1*b,dim=1); s=(z[:,None]*z[None]).sum(-1); same=y[:,None]==y[None]; eye=torch.eye(21,device=a.device)>0; pos=same&~eye; neg=~same; lg=(s/.1).masked_fill(eye,float("-inf")); lp=lg-torch.logsumexp(lg,1,keepdim=True); sc=-(lp.masked_fill(~pos,0.)).sum(1)/pos.sum(1).clamp(min=1); ap=F.relu(1.25-s.detach()); an=F.relu(s.detach()+.25); lpp=(-16*ap*(s-.75)).masked_fill(~pos,-1e4); lnn=(16*an*(s-.25)).masked_fill(~neg,-1e4); return sc, F.softplus(lpp.logsumexp(1)+lnn.logsumexp(1)), (s*neg).amax(1)
@d("loss",(37,13),(37,13),ru(37),rb(.3,37))
def lp_cox_pairwise(x,w,t,ev):
    r=(x*torch.sigmoid(w)).sum(1); risk=(t[None]>=t[:,None]); mx=r.amax().detach(); ld=((r-mx).exp()[None]*risk).sum(1).log()+mx; ev_=ev.float(); nll=-((r-ld)*ev_).sum()/(ev_.sum()+1e-6); cp=(t[:,None]<t[None])&ev[:,None]; ci=torch.sigmoid((r[:,None]-r[None])/.2)*cp; h=(ev_[None]*(t[None]<=t[:,None])/(((r-mx).exp()[None,None]*risk[None]).sum(-1)+1e-6)).sum(1); return nll+.01*(x.abs()).mean(), ci.sum()/(cp.sum()+1.), ev_-h*(r-mx).exp()
@d("loss",(6,27,33),ru(6,27,33),ru(6,27,33))
def lp_tversky_boundary_lovasz_like(x,y,dist):
    y=(y>.6).float(); p=torch.sigmoid(x); tp=(p*y).sum((1,2)); fp=(p*(1-y)).sum((1,2)); fn_=((1-p)*y).sum((1,2)); tv=(1-(tp+1)/(tp+.3*fp+.7*fn_+1)).clamp(min=1e-6)**.75; er=-F.max_pool2d(-y[:,None],3,1,1)[:,0]; bd=y-er; bce=F.relu(x)-x*y+torch.log1p(torch.exp(-x.abs())); wt=1+4*F.avg_pool2d(bd[:,None],5,1,2,count_include_pad=False)[:,0]; hd=((p-y)**2*(dist**2)).mean((1,2)); sk=(F.relu(p-F.max_pool2d(-F.max_pool2d(-p[:,None],3,1,1),3,1,1)[:,0])*y).sum((1,2)); return tv+(bce*wt).sum((1,2))/wt.sum((1,2))+.1*hd, sk/(y.sum((1,2))+1)
@d("loss",(5,9,14,11,3),(5,9,14,11,3),rb(.8,5,1,14,11),train=True)
def lp_gradient_scale_inv5(p,t,m):
    m=m[...,None]; n=m.sum((2,3,4),keepdim=True).clamp(min=1); dl=torch.where(m,F.softplus(p).log()-F.softplus(t).log(),0.); s1=dl.sum((2,3,4),keepdim=True)/(3*n); s2=dl.square().sum((2,3,4),keepdim=True)/(3*n); si=(s2-.85*s1*s1+1e-6).sqrt()*10; g=0
    for k in (1,2): a=dl[:,:,::k,::k]; g=g+(a[:,:,1:]-a[:,:,:-1]).abs().mean((2,3,4))+(a[:,:,:,1:]-a[:,:,:,:-1]).abs().mean((2,3,4))
    rt=torch.maximum(F.softplus(p)/F.softplus(t),F.softplus(t)/F.softplus(p)); return si.squeeze((2,3,4))+.5*g, ((rt<1.25)&m).sum((2,3,4))/n.squeeze((2,3,4))
@d("loss",(8,25,3),(8,34,3),ru(8,25))
def lp_chamfer_emd_soft(a,b,w):
    d2=(a[:,:,None]-b[:,None]).square().sum(-1); ma,ia=d2.min(2); mb,_=d2.min(1); ch=(ma.clamp(min=1e-8).sqrt()*w).sum(1)/w.sum(1)+mb.clamp(min=1e-8).sqrt().mean(1); K=-d2/.2; u=torch.zeros_like(ma); 
    for _ in range(2): v=-torch.logsumexp(K+u[:,:,None],1); u=-torch.logsumexp(K+v[:,None],2)
    P_=torch.exp(K+u[:,:,None]+v[:,None]); return ch, (P_*d2).sum((1,2))/25, (ma<.1).float().mean(1), ia
@d("block",(4,26,5*18),rb(.85,4,26),train=True)
def lp_gated_linear_scan(x,m):
    q,k,v,g,o=x.chunk(5,-1); a=F.logsigmoid(g+2)*m[...,None]; c=a.cumsum(1); kk=F.elu(k)+1; s=torch.exp(c)*(kk*v*torch.exp(-c)*m[...,None]).cumsum(1); z=torch.exp(c)*(kk*torch.exp(-c)*m[...,None]).cumsum(1); y=q.sigmoid()*s/(z+1e-3); h=y.unflatten(-1,(3,6)); h=(h-h.mean(-1,keepdim=True))*torch.rsqrt(h.var(-1,unbiased=False,keepdim=True)+1e-5); return h.flatten(-2)*F.silu(o), c[:,-1].exp()
@d("block",rh(3,18,7,4,20),(20,),(20,),train=True)
def lp_token_shift_gate5(x,mu,g):
    y=x.float(); pv=F.pad(y,(0,0,0,0,0,0,1,0))[:,:-1]; nx=torch.cat([y[:,1:],torch.zeros_like(y[:,:1])],1); up=y.roll(1,2); mk=torch.lerp(y,pv,mu.sigmoid()); mr=torch.lerp(y,nx,g.sigmoid()); a,b=mk.chunk(2,-1); c,e=mr.flip(-1).chunk(2,-1); h=F.relu(a)**2*torch.sigmoid(c)+F.gelu(b,approximate="tanh")*torch.tanh(e); n=h/(h.abs().mean(-1,keepdim=True)+1e-4); o=torch.cat([n,h-n],-1)+.3*up; return o.to(x.dtype), o.amax((2,3)).to(x.dtype)
@d("block",(5,30,3,4,14),(4,),train=True)
def lp_alibi_window_stats(x,sl):
    q,k,v=x.unbind(2); ps=[];vs=[]
    for j in range(4): kj=F.pad(k,(0,0,0,0,j,0))[:,:30]; vj=F.pad(v,(0,0,0,0,j,0))[:,:30]; s=(q*kj).sum(-1)*14**-.5-F.softplus(sl)*j; s=torch.where((torch.arange(30,device=x.device)>=j)[:,None],s,-1e9); ps.append(50*torch.tanh(s/50)); vs.append(vj)
    p=torch.stack(ps,-1); p=torch.exp(p-p.amax(-1,keepdim=True)); z=p.sum(-1,keepdim=True)+1.0; p=p/z; y=sum(p[...,j,None]*vs[j] for j in range(4)); return y.flatten(2), torch.log(z[...,0]), p.sum(1)
@d("block",(4,35,6,12),ri(6,4,35),rb(.9,4,35),train=True)
def lp_moe_router_losses(x,e,m):
    lg=x.mean(-1)+.1*x.amax(-1); p=lg.softmax(-1)*m[...,None]; t1=p.amax(-1,keepdim=True); is1=p==t1; r=p.masked_fill(is1,0.); t2=r.amax(-1,keepdim=True); is2=(r==t2)&(t2>0); g=(torch.where(is1|is2,p,0.)); g=g/(g.sum(-1,keepdim=True)+1e-9); pos=is1.int().cumsum(1)-1; keep=(pos<9)&is1; f=is1.float().mean((0,1)); aux=(f*p.mean((0,1))).sum()*6; zl=lg.logsumexp(-1).square().mean(); own=(e[...,None]==torch.arange(6,device=x.device)); return (g[...,None]*x).sum(2), aux+1e-3*zl, keep.sum(1), (own*p).sum(-1)
@d("pointwise",(9,44,5),(9,44,5),train=True)
def lp_pose_graph_se2(a,b):
    x,y,th,s,w=a.unbind(-1); u,v,ph,t,r=b.unbind(-1); c,n=torch.cos(th),torch.sin(th); sc=torch.exp(.1*s); rx=sc*(c*(u-x)+n*(v-y)); ry=sc*(c*(v-y)-n*(u-x)); da=ph-th; da=da-2*math.pi*torch.floor((da+math.pi)/(2*math.pi)); pr=lambda q:q.roll(1,1); ex=rx-pr(rx); ey=ry-pr(ry); ea=torch.atan2(torch.sin(da-pr(da)),torch.cos(da-pr(da))); e2=ex*ex+ey*ey+2*ea*ea+.1*(t-s)**2; rho=torch.log1p(e2*.5); sw=torch.sigmoid(w+r); return (sw*rho+(1-sw)**2).sum(1), torch.stack([rx,ry,da],-1)
@d("pointwise",(7,15,23,4,3),train=True)
def lp_cubic_bezier_bspline(cp):
    t=torch.linspace(0,1,23,device=cp.device)[:,None]; a,b,c,e=cp.unbind(3); l=torch.lerp; q0=l(a,b,t); q1=l(b,c,t); q2=l(c,e,t); r0=l(q0,q1,t); r1=l(q1,q2,t); p=l(r0,r1,t); d1=3*(r1-r0); d2=6*(q2-2*q1+q0); cr=d1.roll(1,-1)*d2.roll(2,-1)-d1.roll(2,-1)*d2.roll(1,-1); sp=d1.square().sum(-1)+1e-6; kp=cr.square().sum(-1).add(1e-9).sqrt()/sp**1.5; seg=(p[:,:,1:]-p[:,:,:-1]).norm(dim=-1); return p, kp.clamp(max=20.), seg.cumsum(-1)
@d("pointwise",(3,17,21,3),(3,17,21,2),train=True)
def lp_normals_shading(p,uv):
    dx=torch.cat([p[:,:,1:]-p[:,:,:-1],p[:,:,-1:]-p[:,:,-2:-1]],2); dy=torch.cat([p[:,1:]-p[:,:-1],p[:,-1:]-p[:,-2:-1]],1); n=torch.linalg.cross(dx,dy) if False else torch.stack([dx[...,1]*dy[...,2]-dx[...,2]*dy[...,1],dx[...,2]*dy[...,0]-dx[...,0]*dy[...,2],dx[...,0]*dy[...,1]-dx[...,1]*dy[...,0]],-1); n=n/(n.norm(dim=-1,keepdim=True)+1e-5); vw=-p/(p.norm(dim=-1,keepdim=True)+1e-5); lt=torch.tensor([.3,.5,.81],device=p.device); h=vw+lt; h=h/(h.norm(dim=-1,keepdim=True)+1e-5); nh=(n*h).sum(-1).clamp(1e-3,1); nl=(n*lt).sum(-1).clamp(1e-3,1); nv=(n*vw).sum(-1).abs().clamp(1e-3,1); a=torch.sigmoid(uv[...,0])**2+.01; D=a*a/(math.pi*((nh*nh)*(a*a-1)+1)**2); k=(a+1)**2/8; G=nl*nv/((nl*(1-k)+k)*(nv*(1-k)+k)); f0=.04+.9*uv[...,1].sigmoid(); Fr=f0+(1-f0)*(1-(vw*h).sum(-1).clamp(0,1))**5; return (D*G*Fr/(4*nv)+(1-Fr)*nl/math.pi), n
@d("pointwise",(31,2,5,6),train=True)
def lp_complex_mobius(z):
    r,i=z[:,0],z[:,1]; 
    for k in range(2): 
        nr=r*r-i*i+.3; ni=2*r*i-.5; dr=.7*r-.2*i+1.5; di=.7*i+.2*r; dn=dr*dr+di*di+1e-3; r,i=(nr*dr+ni*di)/dn,(ni*dr-nr*di)/dn
    ab=torch.hypot(r,i+1e-4); ph=torch.atan2(i,r+1e-3); lg=ab.clamp(min=1e-3).log(); return torch.stack([r,i],1)*torch.sigmoid(1-ab)[:,None], torch.where(ab>1,lg,-lg)+ph/math.pi, (ab<2).sum((1,2))
@d("pointwise",(4,3,28,27),(4,2,28,27),train=True)
def lp_bilinear_onehot_shift(x,f):
    f=1.5*torch.tanh(f); fx,fy=f[:,0],f[:,1]; p=F.pad(x,(2,2,2,2),mode="replicate"); o=0;ws=0
    for dy in (-1,0,1):
        for dx in (-1,0,1): w=F.relu(1-(fx-dx).abs())*F.relu(1-(fy-dy).abs()); ws=ws+w; o=o+w[:,None]*p[:,:,2+dy:30+dy,2+dx:29+dx]
    occ=(ws<.5).float(); return o/(ws[:,None]+1e-3)*(1-occ[:,None])+x*occ[:,None], (o-x).abs().mean((1,2,3)), occ.mean((1,2))
@d("pool",(3,2,25,31),train=True)
def lp_guided_filter_bilateral(z):
    g,p=z[:,:1],z[:,1:]; nb=F.avg_pool2d(torch.ones_like(g),5,1,2); b=lambda t:F.avg_pool2d(t,5,1,2)/nb; mg,mp=b(g),b(p); cv=b(g*p)-mg*mp; vr=b(g*g)-mg*mg; a=cv/(vr+.04); c=mp-a*mg; q=b(a)*g+b(c); pp=F.pad(p,(1,1,1,1),mode="replicate"); num=p;den=torch.ones_like(p)
    for dy,dx in ((0,1),(2,1),(1,0),(1,2)): n=pp[:,:,dy:dy+25,dx:dx+31]; w=torch.exp(-(n-p)**2/.18-.5); num=num+w*n; den=den+w
    return q, num/den, (q-num/den).square().mean((2,3)).sqrt()
@d("pool",rf(4,6,27,32),train=True)
def lp_lcn_contrast_half(x):
    k=F.avg_pool2d(x,(7,5),1,(3,2)); c=x-k; v=F.avg_pool2d((c*c),(7,5),1,(3,2)); sd=(v.float().mean(1,keepdim=True)+1e-4).sqrt().to(x.dtype); dm=torch.maximum(sd,sd.mean((2,3),keepdim=True)); n=c/dm; e=F.max_pool2d(n.abs(),2); return n*torch.sigmoid(n*1.5), e-e.mean(1,keepdim=True), F.adaptive_avg_pool2d(n,1).flatten(1)
@d("reduction",ru(5,26,31),train=True)
def lp_glcm_texture(x):
    c=torch.arange(6,device=x.device)/5.; q=F.relu(1-(x[...,None]-c).abs()*5); a=q[:,:,:-1]; b=q[:,:,1:]; P_=(a[...,:,None]*b[...,None,:]).mean((1,2)); P_=.5*(P_+P_.mT); P_=P_/(P_.sum((1,2),keepdim=True)+1e-6); i=torch.arange(6,device=x.device,dtype=x.dtype); di=(i[:,None]-i); mu=(P_.sum(2)*i).sum(1); sg=(P_.sum(2)*(i-mu[:,None])**2).sum(1); co=(P_*(i-mu[:,None])[:,:,None]*(i-mu[:,None])[:,None]).sum((1,2))/(sg+1e-5); return torch.stack([(P_*di**2).sum((1,2)),(P_/(1+di.abs())).sum((1,2)),-(P_*(P_+1e-8).log()).sum((1,2)),(P_*P_).sum((1,2)).sqrt(),co],1)
@d("reduction",ru(6,33,29),train=False)
def lp_hu_moments_otsu(x):
    x=torch.where(x>.3,x,torch.zeros_like(x)); Y=torch.arange(33,device=x.device)[:,None]/33.; X=torch.arange(29,device=x.device)/29.; m=x.sum((1,2)); cx=(x*X).sum((1,2))/m; cy=(x*Y).sum((1,2))/m; u=X-cx[:,None,None]; v=Y-cy[:,None,None]; n=lambda p,q:(x*u**p*v**q).sum((1,2))/m**(1+(p+q)/2); a,b,c=n(2,0),n(0,2),n(1,1); e,f,g,h=n(3,0),n(0,3),n(2,1),n(1,2); hs=torch.stack([a+b,(a-b)**2+4*c*c,(e-3*h)**2+(3*g-f)**2,(e+h)**2+(g+f)**2],1); t=torch.linspace(.35,.95,13,device=x.device); k=(x[...,None]>t).float(); w1=k.mean((1,2)); m1=(x[...,None]*k).sum((1,2))/(k.sum((1,2))+1); m0=(x[...,None]*(1-k)).sum((1,2))/((1-k).sum((1,2))+1); bv=w1*(1-w1)*(m1-m0)**2; return -torch.sign(hs)*torch.log10(hs.abs()+1e-12), bv.argmax(1), bv.amax(1)
@d("reduction",(11,3,36),(11,3,36),train=True)
def lp_kabsch_free_align(a,b):
    ca=a-a.mean(-1,keepdim=True); cb=b-b.mean(-1,keepdim=True); sa=ca.square().sum((1,2),keepdim=True).sqrt(); sb=cb.square().sum((1,2),keepdim=True).sqrt(); H=(ca[:,:,None]*cb[:,None]).sum(-1)/(sa*sb); R_=H
    for _ in range(3): G=(R_[:,:,:,None]*R_[:,:,None,:]).sum(1) if False else (R_.transpose(1,2)[:,:,:,None]*R_[:,None]).sum(2); R_=1.5*R_-.5*(R_[:,:,:,None]*G[:,None]).sum(2)
    tr=(R_*H).sum((1,2)); al=(R_.transpose(1,2)[:,:,:,None]*(ca/sa)[:,None]).sum(2); return (al-cb/sb).square().sum(1), 1-tr**2
@d("loss",rf(6,45,3,5),ru(6,45,3),rb(.8,6,45))
def lp_rssm_kl_balance_half(x,u,m):
    pl,ql,_=x.float().unbind(2); lp=torch.log(.99*pl.softmax(-1)+.01/5); lq=torch.log(.99*ql.softmax(-1)+.01/5); kl=lambda a,b:(a.exp()*(a-b)).sum(-1); k=.8*kl(lq.detach(),lp).clamp(min=.3)+.2*kl(lq,lp.detach()).clamp(min=.3); c=lq.exp().cumsum(-1); smp=(c<u[...,:1]*.999).sum(-1); oh=(smp[...,None]==torch.arange(5,device=x.device)).float(); st=oh+lq.exp()-lq.exp().detach(); return (k*m).sum(1)/m.sum(1).clamp(min=1), st.half()*m[...,None], -(lq.exp()*lq).sum(-1)
@d("loss",(7,52),(7,52),ru(7,52),train=True)
def lp_twohot_symlog(x,y,w):
    sl=lambda t:torch.sign(t)*torch.log1p(t.abs()); b=torch.linspace(-3,3,15,device=x.device); t=sl(y).clamp(-2.99,2.99); lo=(b<=t[...,None]).sum(-1)-1; h=t[...,None]-b; tw=F.relu(1-h.abs()/(6/14)); lg=-(x[...,None]-b)**2*2+torch.cos(b*x[...,None]); lp=lg-lg.logsumexp(-1,keepdim=True); ex=(lp.exp()*b).sum(-1); v=torch.sign(ex)*torch.expm1(ex.abs()); return (-(tw*lp).sum(-1)*w).mean(1), v, lo
@d("scan",(6,40,9),(6,40,9),rb(.1,6,40),train=True)
def lp_retrace_reset_scan(q,pi,dn):
    p=pi.softmax(-1); v=(p*q).sum(-1); best=q.amax(-1); c=.9*(p.amax(-1)).clamp(max=1); lc=torch.log(c+1e-6)-dn*8.0; C=lc.cumsum(1); de=best-v+.1*F.pad(v[:,1:],(0,1)); W=torch.exp((C[:,None,:]-C[:,:,None]).clamp(max=0.)); tri=torch.ones(40,40,device=q.device).triu(); g=(W*tri*de[:,None]).sum(-1); ad=g-g.mean(1,keepdim=True); return ad/(ad.square().mean(1,keepdim=True)+1e-5).sqrt(), (v-g.detach()-v.detach()).square().mean(1), W.diagonal(1,1,2)
@d("scan",(83,5,31),(83,5),train=True)
def lp_hmm_forward_4steps(e,pi_):
    A=F.log_softmax(e[:,:,::7]*1.3,-1); em=F.logsigmoid(e[:,:,25:30]); a=F.log_softmax(pi_,-1)+em[...,0]; nrm=[]
    for t in range(1,4): s=a[:,:,None]+A; mx=s.amax(1,keepdim=True); a=(s-mx).exp().sum(1).log()+mx[:,0]+em[...,t]; z=a.logsumexp(1,keepdim=True); a=a-z; nrm.append(z[:,0])
    vt=(a[:,:,None]+A).amax(1)+em[...,4]; return -torch.stack(nrm,1).sum(1), a.exp(), vt
@d("scan",(9,6,7),(9,6,7),train=True)
def lp_soft_dtw_small(x,y):
    D=(x[:,:,None]-y[:,None]).square().mean(-1)+.2*(x[:,:,None]*y[:,None]).mean(-1).abs(); g=.3; row=D[:,0].cumsum(1); 
    for i in range(1,4):
        cur=[D[:,i,0]+row[:,0]]
        for j in range(1,6): a,b,c=-row[:,j]/g,-row[:,j-1]/g,-cur[-1]/g; m=torch.maximum(torch.maximum(a,b),c); cur.append(D[:,i,j]-g*(m+torch.log((a-m).exp()+(b-m).exp()+(c-m).exp())))
        row=torch.stack(cur,1)
    return row, D.amin(2).mean(1)
@d("scan",rh(5,44,3,17),train=True)
def lp_minlstm_log_half(x):
    f,i,h=x.float().unbind(2); dfi=F.softplus(-f)-F.softplus(-i); lf=-F.softplus(dfi); li=-F.softplus(-dfi); g=torch.where(h>=0,(F.relu(h)+.5).log(),-F.softplus(-h)); a=lf.cumsum(1); b=torch.logcumsumexp(li+g-a,1); o=torch.exp(a+b); r=o*torch.rsqrt(o.square().mean(-1,keepdim=True)+1e-6); return (r*torch.sigmoid(h)).to(x.dtype), o[:,-1], (a[:,-1]).exp().to(x.dtype)
@d("scan",(4,7,26,15),rb(.15,4,1,26,1),train=True)
def lp_segment_reset_cumsum(x,r):
    s=r.long().cumsum(2); w=(s==s.transpose(2,3)) if False else (s[...,0][:,:,:,None]==s[...,0][:,:,None,:]); t=torch.arange(26,device=x.device); w=(w&(t[:,None]>=t))[...,None]; y=(x[:,:,None]*w).sum(3); n=w.sum(3); mu=y/n; mx=torch.where(w,x[:,:,None],-1e4).amax(3); dc=torch.where(w,torch.exp(-.3*(t[:,None]-t).clamp(min=0).float())[...,None],0.); ema=(x[:,:,None]*dc).sum(3)/dc.sum(3); return torch.tanh(ema-mu)+F.relu(mx-ema)*.1, (x-mu).square().mean((1,3)), s.amax(2)[...,0]
@d("pointwise",rh(6,29,41),(6,29,1),train=True)
def lp_fp8_fake_quant_ste(x,s):
    y=x.float()*F.softplus(s); am=y.abs().amax(-1,keepdim=True).clamp(min=1e-4); sc=448./am; z=(y*sc).clamp(-448,448); e=torch.floor(torch.log2(z.abs().clamp(min=2**-6))); st=torch.exp2(e-3); q=torch.round(z/st)*st; q=z+(q-z).detach(); dq=q/sc; sat=((y*sc).abs()>=447.9); er=(dq-y)*~sat; snr=10*torch.log10(y.square().sum(-1)/(er.detach().square().sum(-1)+1e-6)); return dq.to(x.dtype), snr, er.abs().mean((0,2)).to(x.dtype)
@d("pointwise",ri(255,19,6,50),rf(19,6,1),train=False)
def lp_kquant_unpack(b,s):
    lo=b&15; hi=b>>4; e=b.unflatten(-1,(25,2)); sx=((e[...,0]<<2)|(e[...,1]>>6))&63; sx=torch.where(sx>31,sx-64,sx); v=torch.stack([lo,hi],-1).flatten(-2).half()*s-s*8; par=b^(b>>4); par=par^(par>>2); par=(par^(par>>1))&1; gray=b^(b>>1); bits=((b[...,None]>>torch.arange(8,device=b.device))&1); return v, sx.to(torch.int8), par.sum(-1), gray, bits.sum(-1).float().mean(-1)
@d("pointwise",ri(1023,3,17,14,13),ri(1023,3,17,14,13),train=False)
def lp_morton_hash_grid(x,y):
    f=lambda v:((lambda t:(t|(t<<1))&0x55555555)((lambda t:(t|(t<<2))&0x33333333)((lambda t:(t|(t<<4))&0x0f0f0f0f)((v|(v<<8))&0x00ff00ff)))); m=f(x)|(f(y)<<1); h=((x*1)^(y*2654435761))%4093; d_=(x-y).abs(); gc=torch.gcd(x,y.clamp(min=1)) if False else torch.where(d_>512,1023-d_,d_); ck=((x//8+y//8)%2).bool(); return m, h, torch.where(ck,gc,-gc), (m&0xff).float()/255-.5, (h==h.amin((2,3),keepdim=True))
@d("pointwise",ri(86400*20000,23,71),ri(24,23,71),train=False)
def lp_time_features(t,tz):
    t=t+(tz-12)*3600; dy=torch.div(t,86400,rounding_mode="floor"); s=t-dy*86400; h=s//3600; mi=(s//60)%60; wd=(dy+3)%7; we=wd>=5; bus=(h>=9)&(h<17)&~we; wk=(dy+3)//7; jd=dy+2440588; ep=(11*(jd%19+1)+8)%30; an=2*math.pi*(s.float()/86400); sun=torch.sin(an-1.57)*torch.cos(2*math.pi*(dy%365).float()/365); nb=((17-h).clamp(min=0)*60-mi).clamp(min=0)*bus; return torch.stack([torch.sin(an),torch.cos(an),torch.sin(2*math.pi*wd.float()/7),sun],-1), nb, wk-wk.amin(1,keepdim=True), ep
@d("norm",(3,8,5,16,19),train=True)
def lp_whiten_pairs5(x):
    a,b=x[:,::2],x[:,1::2]; ma=a.mean((0,2,3,4),keepdim=True); mb=b.mean((0,2,3,4),keepdim=True); a=a-ma; b=b-mb; ra=(a*a).mean((0,2,3,4),keepdim=True)+1e-4; rb_=(b*b).mean((0,2,3,4),keepdim=True)+1e-4; ri_=(a*b).mean((0,2,3,4),keepdim=True); dt=(ra*rb_-ri_**2).clamp(min=1e-6); s=dt.sqrt(); t=(ra+rb_+2*s).sqrt(); iv=1/(s*t); u=(rb_+s)*iv*a-ri_*iv*b; v=(ra+s)*iv*b-ri_*iv*a; mg=torch.sqrt(u*u+v*v+1e-6); g=F.relu(mg-.3)/mg; return torch.stack([u*g,v*g],2).flatten(1,2), ri_.flatten()
@d("norm",rf(9,7,23,16),(7,1,16),train=True)
def lp_group_pnorm_mixed(x,w):
    y=x.float().unflatten(-1,(4,4)); l1=y.abs().mean((-1,2),keepdim=True); l2=y.square().mean((-2,-1),keepdim=True).sqrt(); l4=(y**4).mean((1,4),keepdim=True).add(1e-6)**.25; li=y.abs().amax((2,),keepdim=True); a=torch.sigmoid(w).unflatten(-1,(4,4)); n=a*l1+(1-a)*l2+.1*l4+.05*li; o=(y/(n+1e-3)).flatten(-2); return (o*(1+w)).half(), (l4/ (l2+1e-3)).flatten(1).half()
@d("norm",(14,25,33),rb(.8,14,25),train=True)
def lp_masked_batchnorm_renorm(x,m):
    mk=m[...,None].float(); n=mk.sum((0,1)).clamp(min=2); mu=(x*mk).sum((0,1))/n; va=((x-mu)**2*mk).sum((0,1))/n; rm=.1*mu.detach()+.9*.02; rv=.1*va.detach()+.9; sd=(va+1e-5).sqrt(); r=(sd/(rv+1e-5).sqrt()).detach().clamp(1/3,3); dd=((mu-rm)/(rv+1e-5).sqrt()).detach().clamp(-.5,.5); z=((x-mu)/sd*r+dd)*mk; cw=z-(z.sum(1,keepdim=True)/mk.sum(1,keepdim=True).clamp(min=1))*mk; return F.leaky_relu(cw,.01), rm, rv*n/(n-1)
@d("loss",(16,3,11),(16,3,11),(16,5,3,11),train=True)
def lp_iwae_householder(mu,lv,eps):
    z=mu[:,None]+torch.exp(.5*lv)[:,None]*eps; v=F.normalize(mu.roll(1,-1)+.1,dim=-1)[:,None]; z2=z-2*v*(v*z).sum(-1,keepdim=True); u=torch.tanh(z2.sum(-1)); pz=-.5*(z2*z2).sum((2,3)); qz=(-.5*eps*eps-.5*lv[:,None]).sum((2,3)); px=-(z2[...,1:]-z2[...,:-1]).abs().sum((2,3)); lw=px+pz-qz; w=torch.softmax(lw,1).detach(); ess=1/(w*w).sum(1); return -(lw.logsumexp(1)-math.log(5)), -(w*lw).sum(1), ess, u.mean((1,2))
@d("loss",(10,2,6,27),(10,2,6,27),train=True)
def lp_coupling_flow_logdet(x,c):
    a,b=x[:,0],x[:,1]; s,t=c[:,0],c[:,1]; ld=0
    for k in range(2): 
        sc=1.5*torch.tanh((s+.3*a.roll(k+1,-1))/1.5); b=b*torch.exp(sc)+t-a.flip(1)*.1; ld=ld+sc.sum((1,2)); a,b=b.flip(-1),a
    y=torch.stack([a,b],1); lg=torch.sigmoid(y)*.98+.01; ldj=F.logsigmoid(y)+F.logsigmoid(-y); pr=-.5*y*y-.5*math.log(2*math.pi); return (pr.sum((1,2,3))+ld)/(2*6*27*math.log(2)), lg, ldj.mean((2,3))
@d("pointwise",(5,33,12),(5,33,12),train=True)
def lp_rq_spline_inverse_free(x,p):
    w=p[...,:4].softmax(-1)*.92+.02; h=p[...,4:8].softmax(-1)*.92+.02; dv=F.softplus(p[...,8:])+.1; cw=w.cumsum(-1)-w; ch=h.cumsum(-1)-h; u=torch.sigmoid(x[...,:3])*.999; ge=(u[...,None]>=cw[...,None,:]); lt=(u[...,None]<(cw+w)[...,None,:]); oh=(ge&lt).float(); pk=lambda t:(oh*t[...,None,:]).sum(-1); W,H,x0,y0,d0,d1=pk(w),pk(h),pk(cw),pk(ch),pk(dv),pk(dv.roll(-1,-1)); W=W+1e-3; s=H/W; th=((u-x0)/W).clamp(0,1); q=th*(1-th); dn=s+(d1+d0-2*s)*q; y=y0+H*(s*th*th+d0*q)/dn; ld=(s*s*(d1*th*th+2*s*q+d0*(1-th)**2)+1e-6).log()-2*dn.abs().add(1e-6).log(); return y, ld.sum(-1)
@d("pointwise",(21,3,4,5),(21,4,5),train=True)
def lp_dual_number_hessian(x,w):
    v,g,h=x.unbind(1); s=torch.sigmoid(w); t=torch.tanh(v); d1=1-t*t; d2=-2*t*d1; gv,hv=d1*g,d2*g*g+d1*h; e=torch.exp(-.5*v*v); ge,he=-v*e*g,(v*v-1)*e*g*g-v*e*h; p=t*e; gp=gv*e+t*ge; hp=hv*e+2*gv*ge+t*he; return torch.stack([p*s,gp*s,hp*s],1), (hp-gp).square().mean((1,2))
@d("loss",(7,23,5),(7,23,5),rb(.8,7,23),train=True)
def lp_rotated_kld_boxes(a,b,m):
    def cv(t): w2=(.5*t[...,2]).exp()**2*.25; h2=(.5*t[...,3]).exp()**2*.25; c,s=torch.cos(t[...,4]),torch.sin(t[...,4]); return c*c*w2+s*s*h2+1e-4,c*s*(w2-h2),s*s*w2+c*c*h2+1e-4
    A,B,C=cv(a); D,E,G=cv(b); dt=(D*G-E*E).clamp(min=1e-5); da=(A*C-B*B).clamp(min=1e-5); dx=a[...,0]-b[...,0]; dy=a[...,1]-b[...,1]; mh=(G*dx*dx-2*E*dx*dy+D*dy*dy)/dt; tr=(G*A-2*E*B+D*C)/dt; kl=.5*(mh+tr+torch.log(dt/da)-2); gw=dx*dx+dy*dy+A+C+D+G-2*(A*D+C*G+2*B*E+2*(da*dt).sqrt()).clamp(min=1e-6).sqrt(); return torch.where(m,1-1/(2+torch.log1p(kl.clamp(min=0))),0.).sum(1), gw.clamp(min=0).add(1e-6).sqrt()*m
@d("loss",(4,19,14,3),(4,14,4),train=True)
def lp_polar_mask_iou(p,t):
    d_=F.softplus(p); r=torch.stack([d_[...,0],(d_[...,0]+d_[...,1])*.5,d_[...,2]],-1).flatten(2); g=F.softplus(t).flatten(1)[:,None,:42]; mn=torch.minimum(r,g); mx=torch.maximum(r,g); pi_=torch.log((mx*mx).sum(-1)/(mn*mn).sum(-1)); cent=torch.sqrt(r.amin(-1)/r.amax(-1)); an=torch.arange(42,device=p.device)*(2*math.pi/42); x=r*an.cos(); y=r*an.sin(); ar=.5*(x*y.roll(-1,-1)-x.roll(-1,-1)*y).sum(-1); per=((x-x.roll(1,-1))**2+(y-y.roll(1,-1))**2+1e-8).sqrt().sum(-1); return pi_*cent.detach(), 4*math.pi*ar/per.square(), x.amax(-1)-x.amin(-1)
@d("pointwise",(13,29,7),ru(13,29,3),train=True)
def lp_gaussian3d_to_conic(g,m):
    q=F.normalize(g[...,:4],dim=-1); s=torch.exp(.4*g[...,4:]); r,x,y,z=q.unbind(-1); X,Y=m[...,0]*2-1,m[...,1]*2-1; Z=m[...,2]+.5; j0=1/Z; ja=-X/Z**2; jb=-Y/Z**2; R_=[[1-2*(y*y+z*z),2*(x*y-r*z),2*(x*z+r*y)],[2*(x*y+r*z),1-2*(x*x+z*z),2*(y*z-r*x)],[2*(x*z-r*y),2*(y*z+r*x),1-2*(x*x+y*y)]]; a=0;b=0;c=0
    for k in range(3): sk=s[...,k]; u=(j0*R_[0][k]+ja*R_[2][k])*sk; v=(j0*R_[1][k]+jb*R_[2][k])*sk; a=a+u*u; b=b+u*v; c=c+v*v
    dt=((a+.3)*(c+.3)-b*b); md=.5*(a+c+.6); l1=md+(md*md-dt).clamp(min=.1).sqrt(); return torch.stack([(c+.3)/dt,-b/dt,(a+.3)/dt],-1), torch.ceil(3*l1.sqrt()), (dt>0)&(Z>.6)
@d("scan",(2,3,17,19,21),train=True)
def lp_volume_slab_composite5(v):
    p=F.pad(v,(0,0,0,0,1,1)); gz=.5*(p[:,:,2:]-p[:,:,:-2]); m=v.mean(1,keepdim=True); a=torch.sigmoid(3*m-1)*(1-torch.exp(-gz.abs().sum(1,keepdim=True))); lt=torch.log1p(-a.clamp(max=.98)); T=torch.exp(lt.cumsum(2)-lt); w=a*T; c=(w*torch.sigmoid(v)).sum(2); dz=(w*torch.linspace(0,1,17,device=v.device)[:,None,None]).sum(2); mip=v.amax(2); ao=torch.exp(lt.flip(2).cumsum(2).flip(2)).mean(2); return c*ao+(1-w.sum(2)), dz.squeeze(1), mip-c
@d("pointwise",(15,37,3),(15,37,3),train=False)
def lp_sphere_trace_unrolled(o,dr):
    dr=dr/dr.norm(dim=-1,keepdim=True).clamp_min(1e-6); t=torch.zeros_like(o[...,0]); hit=t>1
    for _ in range(4): p=o+t[...,None]*dr; q=p-torch.round(p*.5)*2; s=q.square().sum(-1).sqrt()-.4; pl=p[...,1]+1.2; dd=torch.minimum(s,pl); hit=hit|(dd.abs()<.01); t=torch.where(hit,t,(t+dd.clamp(min=-.1)).clamp(max=20.))
    fog=torch.exp(-.1*t); ck=((torch.floor(o[...,0]+t*dr[...,0])+torch.floor(o[...,2]+t*dr[...,2]))%2)>.5; return torch.where(hit,fog*torch.where(ck,.9,.4),(1-fog)*.5+dr[...,1]*.2), t, hit
@d("pointwise",ru(4,4,26,35),ru(4,4,26,35),train=True)
def lp_blend_modes_alpha(a,b):
    ca,aa=a[:,:3],a[:,3:]; cb,ab=b[:,:3],b[:,3:]; mul=ca*cb; scr=1-(1-ca)*(1-cb); hl=torch.where(ca<.5,2*mul,2*scr-1); sl=torch.where(ca<.5,cb-(1-2*ca)*cb*(1-cb),cb+(2*ca-1)*(torch.where(cb<=.25,((16*cb-12)*cb+4)*cb,(cb+1e-6).sqrt())-cb)); dg=(cb/(1-ca+1e-2)).clamp(max=1.); lm=lambda c:.3*c[:,:1]+.59*c[:,1:2]+.11*c[:,2:]; d_=lm(ca)-lm(cb); l=cb+d_; mn,mx=l.amin(1,True),l.amax(1,True); L=lm(l); l=torch.where(mn<0,L+(l-L)*L/(L-mn+1e-3),l); bl=.25*(hl+sl+dg+l); ao=aa+ab*(1-aa); return (aa*(1-ab)*ca+aa*ab*bl+(1-aa)*ab*cb)/(ao+1e-4), ao, (mx-mn).mean((1,2,3))
@d("pointwise",ru(5,27,1,34),train=False)
def lp_bayer_demosaic(x):
    x=x[:,:,0]; p=F.pad(x[:,None],(1,1,1,1),mode="reflect")[:,0]; y=torch.arange(27,device=x.device)[:,None]; c=torch.arange(34,device=x.device)[None]; r=(y%2==0)&(c%2==0); b=(y%2==1)&(c%2==1); g=~(r|b); cr=.25*(p[:,:-2,1:-1]+p[:,2:,1:-1]+p[:,1:-1,:-2]+p[:,1:-1,2:]); dg=.25*(p[:,:-2,:-2]+p[:,2:,2:]+p[:,:-2,2:]+p[:,2:,:-2]); h=.5*(p[:,1:-1,:-2]+p[:,1:-1,2:]); v=.5*(p[:,:-2,1:-1]+p[:,2:,1:-1]); gr=g&(y%2==0); G=torch.where(g,x,cr); R_=torch.where(r,x,torch.where(b,dg,torch.where(gr,h,v))); B=torch.where(b,x,torch.where(r,dg,torch.where(gr,v,h))); o=torch.stack([R_,G,B],-1); gn=G.mean((1,2))[:,None]/o.mean((1,2)).clamp(min=1e-4); o=(o*gn[:,None,None]).clamp(0,1); return o**(1/2.2), (o>.98).any(-1)
@d("pointwise",rh(4,28,33,3),train=True)
def lp_oklab_chroma_half(x):
    v=x.float().sigmoid(); r,g,b=v.unbind(-1); l=(.4122*r+.5363*g+.0514*b)**(1/3); m=(.2119*r+.6807*g+.1074*b)**(1/3); s=(.0883*r+.2817*g+.63*b)**(1/3); L=.2105*l+.7936*m-.0041*s; A=1.978*l-2.4286*m+.4506*s; B=.0259*l+.7828*m-.8087*s; C=torch.sqrt(A*A+B*B+1e-6); k=torch.tanh(2*C)/(2*C); A,B=A*k,B*k; L=(L-L.mean((1,2),keepdim=True))*1.1+.5; l=(L+.3963*A+.2158*B)**3; m=(L-.1056*A-.0639*B)**3; s=(L-.0895*A-1.2915*B)**3; o=torch.stack([4.0767*l-3.3077*m+.231*s,-1.2684*l+2.6098*m-.3413*s,-.0042*l-.7034*m+1.7076*s],-1); return o.clamp(0,1).to(x.dtype), C.mean((1,2))
@d("pointwise",(3,22,31,6),train=True)
def lp_structure_tensor_vesselness(x):
    gx=.5*(x.roll(-1,2)-x.roll(1,2)); gy=.5*(x.roll(-1,1)-x.roll(1,1)); a,b,c=(gx*gx).mean(-1),(gx*gy).mean(-1),(gy*gy).mean(-1); bx=lambda t:(t+t.roll(1,1)+t.roll(-1,1)+t.roll(1,2)+t.roll(-1,2))/5; a,b,c=bx(a),bx(b),bx(c); tr=a+c; df=((a-c)**2+4*b*b+1e-8).sqrt(); l1,l2=.5*(tr+df),.5*(tr-df); coh=((l1-l2)/(l1+l2+1e-4))**2; har=(a*c-b*b)-.05*tr*tr; th=.5*torch.atan2(2*b,a-c+1e-5); rb_=l2/(l1+1e-5); ves=torch.exp(-rb_**2/.5)*(1-torch.exp(-(l1**2+l2**2)/.3)); return x*coh[...,None]+gx*torch.cos(th)[...,None]+gy*torch.sin(th)[...,None], har, ves
@d("pointwise",(4,24,29,5),ru(24,29),train=True)
def lp_level_set_chan_vese(ph,im):
    e=.5; H=.5*(1+2/math.pi*torch.atan(ph/e)); dl=e/math.pi/(e*e+ph*ph); i=im[...,None]; c1=(H*i).sum((1,2),keepdim=True)/(H.sum((1,2),keepdim=True)+1e-4); c2=((1-H)*i).sum((1,2),keepdim=True)/((1-H).sum((1,2),keepdim=True)+1e-4); fx=torch.cat([ph[:,:,1:]-ph[:,:,:-1],torch.zeros_like(ph[:,:,:1])],2); fy=torch.cat([ph[:,1:]-ph[:,:-1],torch.zeros_like(ph[:,:1])],1); n=(fx*fx+fy*fy+1e-3).rsqrt(); nx,ny=fx*n,fy*n; kp=nx-F.pad(nx,(0,0,1,0))[:,:,:-1]+ny-F.pad(ny,(0,0,0,0,1,0))[:,:-1]; return ph+.3*dl*(.2*kp-(i-c1)**2+(i-c2)**2), c1.flatten(1)-c2.flatten(1), (dl/n).sum((1,2))
@d("pointwise",(2,3,25,28),(2,3,25,28),train=True)
def lp_mhd_powell_faces(u,b):
    sh=lambda t,k,a:torch.roll(t,-k,a); av=lambda t,a:.5*(t+sh(t,1,a)); ux,uy,uz=u.unbind(1); bx,by,bz=b.unbind(1); ez=av(av(ux,1),2)*av(by,2)-av(av(uy,1),2)*av(bx,1); nbx=bx-.1*(ez-sh(ez,-1,1)); nby=by+.1*(ez-sh(ez,-1,2)); dv=sh(nbx,1,2)-nbx+sh(nby,1,1)-nby; cr=sh(by,1,2)-by-sh(bx,1,1)+bx; pm=.5*(nbx**2+nby**2+bz**2); nu=u-.05*torch.stack([sh(pm,1,2)-pm+cr*nby,sh(pm,1,1)-pm-cr*nbx,uz*dv],1); return nu, torch.stack([nbx,nby,bz-.1*cr],1), dv.abs().amax((1,2))
@d("pointwise",(6,13,15,17),(6,1,1,17),train=True)
def lp_allen_cahn_sdirk(u,k):
    x=u; al=F.softplus(k)*.2
    for _ in range(2): l=torch.cat([u[:,1:2],u[:,:-1]],1)+torch.cat([u[:,1:],u[:,-2:-1]],1)+F.pad(u,(0,0,1,1))[:,:,2:]+F.pad(u,(0,0,1,1))[:,:,:-2]-4*u; r=x+al*l-.1*(u**3-u)-u; J=1+4*al-.1*(1-3*u*u); u=u+r/J.clamp(min=.5)
    gx=u[:,:,1:]-u[:,:,:-1]; return u, r.square().mean((1,2,3)).sqrt(), (.25*(1-u*u)**2).sum((1,2))+.5*(gx*gx).sum((1,2))
@d("reduction",(5,24,3),(24,),train=True)
def lp_ewald_like_coulomb(x,q):
    dl=x[:,:,None]-x[:,None]; dl=dl-3*torch.floor(dl/3+.5); r=(dl.square().sum(-1)+.02).sqrt(); oth=(torch.arange(24,device=x.device)[:,None]!=torch.arange(24,device=x.device)); fc=torch.where(r<1.4,.5*(torch.cos(math.pi*r/1.4)+1),torch.zeros_like(r))*oth; e=torch.erfc(1.1*r)/r*fc*q[:,None]*q; mo=.2*(1-torch.exp(-1.5*(r-.7)))**2*fc; rho=(torch.exp(-2*r)*fc).sum(-1); G2=(torch.exp(-4*(r-.6)**2)*fc).sum(-1); fr=(dl/r[...,None]*(e+mo)[...,None]).sum(2); return .5*(e+mo).sum((1,2))-(rho+1e-6).sqrt().sum(1), G2, fr
@d("reduction",(4,16,3),train=True)
def lp_angular_symmetry(x):
    dl=x[:,:,None]-x[:,None]; d2=dl.square().sum(-1)+.05; fc=torch.exp(-d2)*(1-torch.eye(16,device=x.device)); n=dl*d2.rsqrt()[...,None]; cs=(n[:,:,:,None]*n[:,:,None]).sum(-1).clamp(-1,1); w=fc[:,:,:,None]*fc[:,:,None]; tri=(torch.ones(16,16,device=x.device).triu(1)); w=w*tri; a=((1+cs)**4*w).sum((2,3))*2**-3; b=((1-cs)**2*w).sum((2,3)); p2=((1.5*cs*cs-.5)*w).sum((2,3))/(w.sum((2,3))+1e-5); return torch.stack([a,b,p2],-1), fc.sum(-1)
@d("reduction",(37,8,5),(37,8),train=True)
def lp_ledoit_risk_parity(r,w):
    r=.1*r[...,0]+.02*r[...,1:].mean(-1); c=r-r.mean(0); S=(c[:,:,None]*c[:,None]).mean(0); v=S.diagonal(); mu=v.mean(); pi_=((c[:,:,None]*c[:,None]-S)**2).mean(0).sum(); gm=(S-mu*torch.eye(8,device=r.device)).square().sum(); k=(pi_/(gm*37+1e-9)).clamp(0,1); Sg=(1-k)*S+k*mu*torch.eye(8,device=r.device); p=w.softmax(1); Sp=(Sg*p[:,None]).sum(-1); vr=(p*Sp).sum(1); rc=p*Sp/vr[:,None]; hhi=(p*p).sum(1); to=(p[1:]-p[:-1]).abs().sum(1); return (rc-1/8).square().sum(1)*100+hhi, torch.cat([to,to[:1]])*vr.sqrt()
@d("pointwise",(19,23,6),ru(23,6),train=True)
def lp_binomial_crr_5steps(s,k):
    dt=.05; vol=torch.sigmoid(s[...,0])*.4+.1; u=torch.exp(vol*math.sqrt(dt)); q=((math.exp(.03*dt)-1/u)/(u-1/u)).clamp(.01,.99)[...,None]; n=torch.arange(6,device=s.device); S=torch.exp(.1*s[...,1:2]); K=.7+.6*k; pay=lambda j,i:F.relu(K[:,:1]-S*u[...,None]**(2*n[:i+1]-i)); v=pay(0,5)
    for i in range(4,-1,-1): v=torch.maximum(math.exp(-.03*dt)*(q*v[...,1:]+(1-q)*v[...,:-1]),pay(0,i))
    return v[...,0], q.squeeze(-1), (v[...,0]-F.relu(K[:,0]-S[...,0]))
@d("scan",(9,88),(9,88),train=True)
def lp_garch_kelly_unrolled(r,w):
    e=.02*r; h=e.square().mean(1); o=[]
    for t in range(6): h=1e-5+.1*e[:,t]**2+.85*h; o.append(h)
    H=torch.stack(o,1); nl=.5*(H.log()+e[:,:6]**2/H).sum(1); ew=e.square().unfold(1,12,4); dc=.9**torch.arange(11,-1,-1,device=r.device); v=(ew*dc).sum(-1)/dc.sum(); mu=(e.unfold(1,12,4)*dc).sum(-1)/dc.sum(); f=(mu/(v+1e-5)).clamp(-2,2); pn=torch.log1p((f[:,:-1]*mu[:,1:]).clamp(min=-.9)); cum=pn.cumsum(1); sg=torch.sigmoid(w.mean(1,keepdim=True)); es=torch.where(pn<pn.mean(1,keepdim=True)-pn.std(1,keepdim=True),pn,0.).sum(1); return nl, cum*sg, es, v.sqrt()*math.sqrt(252)
@d("reduction",(5,4,150),train=True)
def lp_goertzel_mdct_bands(x):
    n=torch.arange(30,device=x.device); w=torch.sin(math.pi*(n+.5)/30); f=x.unfold(-1,30,20)*w; rs=[];ims=[]
    for k in (1,3,5,8): rs.append((f*torch.cos(2*math.pi*k*n/30)).sum(-1)); ims.append((f*torch.sin(-2*math.pi*k*n/30)).sum(-1))
    r,i=torch.stack(rs,-1),torch.stack(ims,-1); p=r*r+i*i+1e-6; lp=10*torch.log10(p); lp=torch.maximum(lp,lp.amax((2,3),keepdim=True)-40.); fl=p.log().mean(-1).exp()/p.mean(-1); cn=(p*torch.tensor([1.,3.,5.,8.],device=x.device)).sum(-1)/p.sum(-1); fx=F.relu(lp[:,:,1:]-lp[:,:,:-1]).sum(-1); ph=torch.atan2(i,r); dp=ph[:,:,1:]-ph[:,:,:-1]; dp=dp-2*math.pi*torch.round(dp/(2*math.pi)); return lp, fl*cn, fx/(fx.mean(-1,keepdim=True)+1e-3), dp
@d("pointwise",rf(8,2,99),train=True)
def lp_midside_saturate_half(x):
    y=x.float(); m,s=.5*(y[:,0]+y[:,1]),.5*(y[:,0]-y[:,1]); wd=torch.sqrt(s.square().mean(1,keepdim=True)+1e-6)/torch.sqrt(m.square().mean(1,keepdim=True)+1e-6); s=s*(1+torch.tanh(1-wd)); d_=torch.tanh(1.7*m+.2)-math.tanh(.2); d_=d_-F.pad(d_,(1,0))[:,:-1]*.95; hp=s-.25*(F.pad(s,(2,0))[:,:-2]+2*F.pad(s,(1,0))[:,:-1]+s); L,R_=d_+hp,d_-hp; pk=torch.maximum(L.abs(),R_.abs()); g=(1/F.max_pool1d(F.pad(pk,(0,8))[:,None],9,1)[:,0].clamp(min=.8)); return torch.stack([L*g,R_*g],1).half(), (L*R_).sum(1)*((L*L).sum(1)*(R_*R_).sum(1)+1e-6).rsqrt(), wd.squeeze(1).half()
@d("loss",(6,34,3),(6,34,3),rb(.75,6,34),train=True)
def lp_lddt_fape_lite(p,t,m):
    D=lambda x:((x[:,:,None]-x[:,None]).square().sum(-1)+1e-6).sqrt(); a,b=D(p),D(t); mk=(b<2.5)&m[:,None]&m[:,:,None]&(torch.eye(34,device=p.device)<.5); e=(a-b).abs(); sc=.25*(torch.sigmoid((.5-e)*8)+torch.sigmoid((1-e)*8)+torch.sigmoid((2-e)*8)+torch.sigmoid((4-e)*8)); l=(sc*mk).sum(-1)/(mk.sum(-1)+1e-4); bl=(p[:,1:]-p[:,:-1]).norm(dim=-1); bd=F.relu((bl-1.3).abs()-.1); cl=F.relu(.6-a)*mk; return 1-l, bd.mean(1)+cl.sum((1,2))/34, torch.where(mk,e.clamp(max=10.),0.).amax((1,2))
@d("pointwise",(5,31,4,3),train=True)
def lp_dihedral_backbone(x):
    b=x[:,:,1:]-x[:,:,:-1]; u,v,w=b.unbind(2); cr=lambda p,q:torch.stack([p[...,1]*q[...,2]-p[...,2]*q[...,1],p[...,2]*q[...,0]-p[...,0]*q[...,2],p[...,0]*q[...,1]-p[...,1]*q[...,0]],-1); n1,n2=cr(u,v),cr(v,w); vn=v/(v.norm(dim=-1,keepdim=True)+1e-5); y=(cr(n1,vn)*n2).sum(-1); c=(n1*n2).sum(-1); ph=torch.atan2(y,c+1e-4); e=.4*(1+torch.cos(3*ph))+.2*(1-torch.cos(ph)); an=torch.acos(((u*v).sum(-1)/(u.norm(dim=-1)*v.norm(dim=-1)+1e-4)).clamp(-.99,.99)); return e+.5*(an-1.9)**2, torch.stack([ph.sin(),ph.cos()],-1), (ph[:,1:]-ph[:,:-1]).cos()
@d("norm",rh(3,5,14,22,9),rb(.85,3,1,14,22,1),train=True)
def lp_axial_softmax_cascade_half(x,m):
    y=x.float().masked_fill(~m,-1e4); r=torch.softmax(y,3); c=F.softmax(y.transpose(2,3),-1).transpose(2,3) if False else torch.softmax(y,2); g=(r*c).sqrt() if False else r*c; g=g/(g.sum((2,3),keepdim=True)+1e-6); mu=(g*x.float()).sum((2,3),keepdim=True); d_=(x.float()-mu)*m; s=(g*d_*d_).sum((2,3),keepdim=True); z=d_*torch.rsqrt(s+1e-4); h=z.roll(1,4)*torch.sigmoid(z)+mu; return (h*m).to(x.dtype), s.flatten(1).to(x.dtype)
@d("block",(3,7,3,19,26),rh(3,7,19,26),train=True)
def lp_convgru_tail_unrolled(x,h0):
    h=h0.float()[:,0]; o=[]
    for t in range(3): z,r,n=x[:,t].unbind(1); z=torch.sigmoid(z+.3*h.roll(1,-1)); r=torch.sigmoid(r-.2*h.roll(-1,1)); n=torch.tanh(n+r*h); h=(1-z)*n+z*h; h=h-h.mean((1,2),keepdim=True)*.1; o.append(h)
    s=torch.stack(o,1); dd=s[:,1:]-s[:,:-1]; return s*torch.sigmoid(h0[:,:3].float()), (dd.square().sum((2,3))+1e-6).sqrt(), (x[:,3:].amax(2)-h[:,None]).clamp(0,6)
@d("block",rf(5,28,4,30),(30,),train=True)
def lp_spike_lif_surrogate(x,th):
    y=x.float(); v=torch.zeros_like(y[:,:,0]); o=[]; tr=0
    for t in range(4): v=.9*v+y[:,:,t]; u=v-F.softplus(th)-.1*tr; s=(u>0).float(); sg=1/(1+(3*u).abs())**2; s=s.detach()+(sg*u-(sg*u).detach()); tr=.8*tr+s; v=v*(1-s.detach())-.05*v*v.abs(); o.append(s)
    s=torch.stack(o,2); r=s.mean(2); return s.half(), (r-.2).square().mean(-1), (v.abs().mean(1)).half()
@d("scan",(10,3,4,23),ru(10,4,23),train=True)
def lp_kalman_scalar_bank(x,qn):
    z,a,r=x.unbind(1); m=z[:,0]; P_=torch.ones_like(m); ll=0; ms=[]
    for t in range(4): A=torch.tanh(a[:,t]); mp=A*m; Pp=A*A*P_+qn[:,t]+.01; S=Pp+F.softplus(r[:,t])+.05; e=z[:,t]-mp; K=Pp/S; ok=(e*e<9*S); K=torch.where(ok,K,.1*K); m=mp+K*e; P_=(1-K)**2*Pp+K*K*(S-Pp); ll=ll-.5*(e*e/S+S.log()); ms.append(m)
    f=torch.stack(ms,1); return f, P_.sqrt(), ll.sum(-1), (f[:,1:]-f[:,:-1]).abs().mean((1,2))
@d("reduction",(8,30,21),rb(.6,8,30),train=True)
def lp_pairwise_rank_corr(x,m):
    s=x.mean(-1); t=x.amax(-1); sg=lambda v:torch.tanh((v[:,:,None]-v[:,None])*6); mm=(m[:,None]&m[:,:,None]).float(); a,b=sg(s)*mm,sg(t)*mm; tau=(a*b).sum((1,2))/((a*a).sum((1,2))*(b*b).sum((1,2))+1e-5).sqrt(); ra=(.5*a).sum(2); rk=ra-(ra*m).sum(1,keepdim=True)/m.sum(1,keepdim=True).clamp(min=1); rb2=.5*b.sum(2); co=(rk*rb2*m).sum(1)/((rk*rk*m).sum(1).sqrt()*(rb2*rb2*m).sum(1).sqrt()+1e-4); top=(ra>ra.amax(1,keepdim=True)-3)&m; return tau, co, torch.where(top[...,None],x,0.).sum(1)/top.sum(1,keepdim=True).clamp(min=1)
@d("reduction",(4,6,5,17,13),(4,6,5,17,13),train=True)
def lp_ncc_local_window5(a,b):
    def bx(t):
        for ax in (2,3,4): t=t+t.roll(1,ax)+t.roll(-1,ax)
        return t/27
    ma,mb=bx(a),bx(b); va=F.relu(bx(a*a)-ma*ma)+1e-3; vb=F.relu(bx(b*b)-mb*mb)+1e-3; cc=(bx(a*b)-ma*mb); n=cc*cc/(va*vb); w=torch.tanh(va*4); return 1-(n*w).sum((2,3,4))/w.sum((2,3,4)), cc.sign()*n.clamp(min=1e-6).sqrt()
@d("pointwise",rh(3,21,2,4,25),rh(3,21,25),train=True)
def lp_kv_decay_gate_chunks(x,g):
    k,v=x.float().unbind(2); gt=-F.softplus(g.float())[:,:,None]; c=gt.cumsum(1); kd=k*torch.exp((c[:,-1:]-c).clamp(min=-20.)); kr=torch.cat([-kd[...,13:],kd[...,:12],kd[...,12:13]],-1); s=(kd[...,:12]*v[...,12:24]).sum(-1,keepdim=True); n=torch.rsqrt(kr.pow(2).sum(-1,keepdim=True)+1e-5); w=torch.sigmoid(s)*kr*n; o=torch.where(w.abs()>.02,w*v.flip(1),v*.1); return o.transpose(1,2).to(x.dtype), s.squeeze(-1).amax(1).to(x.dtype), c[:,-1,0]
@d("pointwise",(6,25,3,18),rb(.9,6,25),train=True)
def lp_continuous_mixup_cutout(x,m):
    a=torch.sigmoid(x.mean((2,3),keepdim=True)); pr=x.flip(0); t=torch.linspace(0,1,18,device=x.device); c=.2+.6*a; bx=torch.sigmoid(40*(.15-(t-c).abs())); y=a*x+(1-a)*pr; y=y*(1-bx)+bx*pr.roll(2,2); sw=y[:,1::2]; y=torch.cat([sw,y[:,::2]],1); mn=torch.where(m[:,:,None,None],y,float("inf")).amin((1,3),keepdim=True); mx=torch.where(m[:,:,None,None],y,float("-inf")).amax((1,3),keepdim=True); return ((y-mn)/(mx-mn+1e-3)).clamp(0,1)*m[...,None,None], bx.sum(-1)*a.squeeze(-1), (mx-mn).flatten(1)
@d("pointwise",ri(2**20,33,57),ri(37,33,57),train=False)
def lp_xorshift_float_dither(s,k):
    M_=0xffffffff; s=(s+k*2654435769)&M_; 
    for _ in range(3): s=s^((s<<13)&M_); s=s^(s>>17); s=s^((s<<5)&M_)
    u=(s>>8).float()*(1/16777216); v=((s*1664525+1013904223)&M_)>>9; w=v.float()*(1/8388608)+1e-7; z=torch.sqrt(-2*torch.log(w.clamp(max=1.)))*torch.cos(2*math.pi*u); d_=torch.floor(k.float()*.37+u)-k.float()*.37; lz=(s[...,None]>>torch.arange(31,-1,-1,device=s.device)&1).cumsum(-1).eq(0).sum(-1); return z, d_, lz, s%k.clamp(min=1), (u-.5).mean(1)
@d("reduction",ru(6,40),rb(.5,6,40),rb(.2,6,1),train=False)
def lp_auc_calibration(p,y,dn):
    yf=y.float(); gt=(p[:,:,None]>p[:,None]).float()+.5*(p[:,:,None]==p[:,None]); pr=(y[:,:,None]&~y[:,None]); auc=(gt*pr).sum((1,2))/pr.sum((1,2)).clamp(min=1); b=(p*10).floor().clamp(max=9).long(); oh=(b[...,None]==torch.arange(10,device=p.device)); n=oh.sum(1); cf=(oh*p[...,None]).sum(1)/n.clamp(min=1); ac=(oh*yf[...,None]).sum(1)/n.clamp(min=1); ece=((cf-ac).abs()*n).sum(1)/40; pr_=(p[:,:,None]>=p[:,None]); tp=(pr_.mT&y[:,None]).sum(-1); prec=tp/pr_.mT.sum(-1).clamp(min=1); ap=(prec*yf).sum(1)/yf.sum(1).clamp(min=1); yj=(2*tp/(pr_.mT.sum(-1)+y.sum(1,keepdim=True)).clamp(min=1)); return torch.where(dn[:,0],.5,auc), ece, ap, yj.amax(1), yj.argmax(1)
