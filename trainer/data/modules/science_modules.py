"""Physics, graphics, finance, optimisers, and long programs."""
from written_base import *
def heat1(u,k):
    return u[:,1:-1]+0.1*k[1:-1]*(u[:,2:]-2*u[:,1:-1]+u[:,:-2])
fn("sci_heat1d_slice","pointwise",heat1,(37,211),(211,),train=True)
def heat2(u,src,m):
    lap=torch.roll(u,1,-1)+torch.roll(u,-1,-1)+torch.roll(u,1,-2)+torch.roll(u,-1,-2)-4*u
    return torch.where(m,u+0.2*lap+1e-3*src,torch.zeros_like(u))
fn("sci_heat2d_roll","pointwise",heat2,(3,54,71),(54,71),rb(.9,54,71))
def heat3(u):
    p=F.pad(u[:,None],(1,1,1,1,1,1),mode="replicate")[:,0]
    c=p[:,1:-1,1:-1,1:-1]
    l=p[:,2:,1:-1,1:-1]+p[:,:-2,1:-1,1:-1]+p[:,1:-1,2:,1:-1]+p[:,1:-1,:-2,1:-1]+p[:,1:-1,1:-1,2:]+p[:,1:-1,1:-1,:-2]
    return c+(l-6*c)/8.0
fn("sci_heat3d_replicate","pointwise",heat3,(2,13,18,25))
def wave2(u,up,c):
    p=F.pad(u,(1,1,1,1))
    lap=(p[...,2:,1:-1]+p[...,:-2,1:-1]+p[...,1:-1,2:]+p[...,1:-1,:-2]-4*u)
    un=2*u-up+(c*0.35).square()*lap
    return un*0.999, u, 0.5*(un-up).pow(2).mean(dim=(-1,-2))
fn("sci_wave2d_energy","reduction",wave2,(5,41,58),(5,41,58),(41,58),train=True)
def burgers(u):
    dx=0.05; dt=0.01; nu=0.02
    ul=torch.roll(u,1,-1); ur=torch.roll(u,-1,-1)
    a=torch.clamp(u,min=0); b=torch.clamp(u,max=0)
    adv=a*(u-ul)/dx+b*(ur-u)/dx
    return u-dt*adv+nu*dt/dx**2*(ur-2*u+ul)
fn("sci_burgers_upwind","pointwise",burgers,(29,257),train=True)
def burg2(u,v):
    ux=(u[:,1:-1,2:]-u[:,1:-1,:-2])*0.5; uy=(u[:,2:,1:-1]-u[:,:-2,1:-1])*0.5
    vx=(v[:,1:-1,2:]-v[:,1:-1,:-2])*0.5; vy=(v[:,2:,1:-1]-v[:,:-2,1:-1])*0.5
    uc=u[:,1:-1,1:-1]; vc=v[:,1:-1,1:-1]
    lu=u[:,1:-1,2:]+u[:,1:-1,:-2]+u[:,2:,1:-1]+u[:,:-2,1:-1]-4*uc
    lv=v[:,1:-1,2:]+v[:,1:-1,:-2]+v[:,2:,1:-1]+v[:,:-2,1:-1]-4*vc
    un=uc-0.01*(uc*ux+vc*uy)+0.05*lu; vn=vc-0.01*(uc*vx+vc*vy)+0.05*lv
    return F.pad(un,(1,1,1,1)),F.pad(vn,(1,1,1,1)),(ux+vy).abs().amax((1,2))
fn("sci_burgers2d_full","reduction",burg2,(3,46,53),(3,46,53))
def minmod(u):
    d=u[:,1:]-u[:,:-1]; a,b=d[:,:-1],d[:,1:]
    s=0.5*(torch.sign(a)+torch.sign(b))*torch.minimum(a.abs(),b.abs())
    ul=u[:,1:-1]+0.5*s; ur=u[:,1:-1]-0.5*s
    fl=0.5*ul[:,:-1]**2; fr=0.5*ur[:,1:]**2
    al=torch.maximum(ul[:,:-1].abs(),ur[:,1:].abs())
    f=0.5*(fl+fr)-0.5*al*(ur[:,1:]-ul[:,:-1])
    return u[:,2:-2]-0.1*(f[:,1:]-f[:,:-1])
fn("sci_muscl_minmod","pointwise",minmod,(21,195))
def vanleer(u):
    d=torch.diff(u,dim=-1); r=d[...,:-1]/(d[...,1:]+1e-8)
    phi=(r+r.abs())/(1+r.abs())
    sb=torch.maximum(torch.maximum(torch.clamp(2*r,max=1),torch.clamp(r,max=2)),torch.zeros_like(r))
    return phi*d[...,1:], sb*d[...,1:]
fn("sci_vanleer_superbee","pointwise",vanleer,(7,19,83),train=True)
def ns(u,v,p):
    r=lambda x,i,j:torch.roll(x,(i,j),(0,1))
    dudx=(r(u,0,-1)-r(u,0,1))/0.2; dudy=(r(u,-1,0)-r(u,1,0))/0.2
    dvdx=(r(v,0,-1)-r(v,0,1))/0.2; dvdy=(r(v,-1,0)-r(v,1,0))/0.2
    b=1.0*(10.0*(dudx+dvdy)-dudx**2-2*dudy*dvdx-dvdy**2)
    pn=0.25*(r(p,0,-1)+r(p,0,1)+r(p,-1,0)+r(p,1,0)-0.01*b)
    px=(r(pn,0,-1)-r(pn,0,1))/0.2; py=(r(pn,-1,0)-r(pn,1,0))/0.2
    return u-0.01*(u*dudx+v*dudy+px), v-0.01*(u*dvdx+v*dvdy+py), pn
fn("sci_ns_projection","pointwise",ns,(61,74),(61,74),(61,74))
def swe(h,u,v):
    g=9.81; H=h.abs()+1.0
    cx=lambda f:0.5*(f[:,:,2:]-f[:,:,:-2])[:,1:-1]; cy=lambda f:0.5*(f[:,2:]-f[:,:-2])[:,:,1:-1]
    hu=H*u; hv=H*v; q=0.5*g*H*H
    dh=-(cx(hu)+cy(hv)); du=-(cx(hu*u+q)+cy(hu*v)); dv=-(cx(hu*v)+cy(hv*v+q))
    c=lambda f:f[:,1:-1,1:-1]
    hn=c(H)+1e-3*dh; un=(c(hu)+1e-3*du)/hn.clamp_min(1e-4); vn=(c(hv)+1e-3*dv)/hn.clamp_min(1e-4)
    return torch.stack([hn,un,vn],1)
fn("sci_shallow_water","pointwise",swe,(2,39,50),(2,39,50),(2,39,50),train=True)
def gs(uv,f,k):
    p=F.pad(uv,(1,1,1,1),mode="circular")
    l=0.2*(p[:,:,:-2,1:-1]+p[:,:,2:,1:-1]+p[:,:,1:-1,:-2]+p[:,:,1:-1,2:])+0.05*(p[:,:,:-2,:-2]+p[:,:,:-2,2:]+p[:,:,2:,:-2]+p[:,:,2:,2:])-uv
    u,v=uv[:,0],uv[:,1]; r=u*v*v
    return torch.stack((u+0.16*l[:,0]-r+f*(1-u),v+0.08*l[:,1]+r-(f+k)*v),1).clamp(0,1)
fn("sci_gray_scott","pointwise",gs,lambda:torch.rand(3,2,47,62),lambda:torch.rand(47,62)*.05,lambda:torch.rand(47,62)*.06)
CX=[0,1,0,-1,0,1,-1,-1,1]; CY=[0,0,1,0,-1,1,1,-1,-1]; WW=[4/9]+[1/9]*4+[1/36]*4
def lbm(f):
    rho=f.sum(0); ux=(f[1]-f[3]+f[5]-f[6]-f[7]+f[8])/rho; uy=(f[2]-f[4]+f[5]+f[6]-f[7]-f[8])/rho
    u2=1.5*(ux*ux+uy*uy); out=[]
    for i in range(9):
        cu=3*(CX[i]*ux+CY[i]*uy)
        feq=WW[i]*rho*(1+cu+0.5*cu*cu-u2)
        out.append(torch.roll(f[i]-(f[i]-feq)/0.6,(CY[i],CX[i]),(0,1)))
    return torch.stack(out)
fn("sci_lbm_d2q9","reduction",lbm,lambda:torch.rand(9,43,66)+.5)
def nbody(x,m):
    d=x[:,None,:,:]-x[:,:,None,:]
    r2=(d*d).sum(-1)+0.01
    inv=torch.rsqrt(r2)**3
    return (d*(inv*m[:,None,:])[...,None]).sum(2)
fn("sci_nbody_acc","reduction",nbody,(3,45,3),lambda:torch.rand(3,45),train=False)
def nbpot(x,m):
    r=(x.unsqueeze(0)-x.unsqueeze(1)).pow(2).sum(-1).add(1e-2).sqrt()
    e=torch.triu(-(m[:,None]*m[None,:])/r,diagonal=1)
    return 6.674*e.sum()
fn("sci_nbody_potential","reduction",nbpot,(93,3),lambda:torch.rand(93),train=True)
def spring(x,v,rest):
    d=x[:,1:]-x[:,:-1]; L=d.norm(dim=-1,keepdim=True)
    dirn=d/(L+1e-7); f=40.0*(L-rest[...,None])*dirn
    rel=((v[:,1:]-v[:,:-1])*dirn).sum(-1,keepdim=True)
    f=f+0.8*rel*dirn
    a=F.pad(f,(0,0,0,1))-F.pad(f,(0,0,1,0))
    a=a+torch.tensor([0.,-9.8,0.])-0.1*v
    vn=v+0.01*a
    return x+0.01*vn,vn
fn("sci_spring_chain","reduction",spring,(17,62,3),(17,62,3),lambda:torch.rand(17,61))
def verlet(x,v,k):
    a=-k*x-0.1*x**3; vh=v+0.5*0.02*a; xn=x+0.02*vh; an=-k*xn-0.1*xn**3; vn=vh+0.01*an
    e=0.5*vn**2+0.5*k*xn**2+0.025*xn**4
    return xn,vn,e.sum(-1)
fn("sci_verlet_duffing","reduction",verlet,(131,77),(131,77),(77,),train=True)
def lor(x,y,z,s=10.,r=28.,b=8/3): return s*(y-x),x*(r-z)-y,x*y-b*z
def lorrk4(st):
    x,y,z=st.unbind(-1); h=0.01
    a=lor(x,y,z); b=lor(*[p+.5*h*q for p,q in zip((x,y,z),a)]); c=lor(*[p+.5*h*q for p,q in zip((x,y,z),b)]); d=lor(*[p+h*q for p,q in zip((x,y,z),c)])
    return torch.stack([p+h/6*(q+2*r+2*s+t) for p,q,r,s,t in zip((x,y,z),a,b,c,d)],-1)
fn("sci_lorenz_rk4","pointwise",lorrk4,(1501,3),train=True)
def pend(th,om,l):
    f=lambda t,o:(o,-9.81/l*torch.sin(t)-0.05*o)
    h=0.02; k1=f(th,om); k2=f(th+h*k1[0],om+h*k1[1])
    t=th+h/2*(k1[0]+k2[0]); o=om+h/2*(k1[1]+k2[1])
    t=torch.remainder(t+math.pi,2*math.pi)-math.pi
    return t,o,0.5*(l*o)**2+9.81*l*(1-torch.cos(t))
fn("sci_pendulum_heun","pointwise",pend,(55,90),(55,90),lambda:torch.rand(90)+.5)
def dblpend(t1,t2,w1,w2):
    d=t1-t2; den=3-torch.cos(2*d)
    a1=(-9.8*3*torch.sin(t1)-9.8*torch.sin(t1-2*t2)-2*torch.sin(d)*(w2**2+w1**2*torch.cos(d)))/den
    a2=(2*torch.sin(d)*(2*w1**2+19.6*torch.cos(t1)+w2**2*torch.cos(d)))/den
    H=w1**2+0.5*w2**2+w1*w2*torch.cos(d)-9.8*(2*torch.cos(t1)+torch.cos(t2))
    return a1,a2,H
fn("sci_double_pendulum","pointwise",dblpend,(4321,),(4321,),(4321,),(4321,),train=True)
def qmul(a,b):
    w1,x1,y1,z1=a.unbind(-1); w2,x2,y2,z2=b.unbind(-1)
    return torch.stack([w1*w2-x1*x2-y1*y2-z1*z2,w1*x2+x1*w2+y1*z2-z1*y2,w1*y2-x1*z2+y1*w2+z1*x2,w1*z2+x1*y2-y1*x2+z1*w2],-1)
fn("sci_quat_mul","pointwise",qmul,(6,205,4),(205,4),train=True)
def q2r(q):
    q=q/q.norm(dim=-1,keepdim=True).clamp_min(1e-8); w,x,y,z=q[...,0],q[...,1],q[...,2],q[...,3]
    return torch.stack([1-2*(y*y+z*z),2*(x*y-w*z),2*(x*z+w*y),2*(x*y+w*z),1-2*(x*x+z*z),2*(y*z-w*x),2*(x*z-w*y),2*(y*z+w*x),1-2*(x*x+y*y)],-1).reshape(q.shape[:-1]+(3,3))
fn("sci_quat_to_rot","reduction",q2r,(11,67,4),train=True)
def qrot(q,v):
    q=F.normalize(q,dim=-1); u=q[...,1:]; w=q[...,:1]
    t=2*torch.cross(u,v,dim=-1); return v+w*t+torch.cross(u,t,dim=-1)
fn("sci_quat_rotate","reduction",qrot,(301,1,4),(301,14,3))
def rodr(w,p):
    th=torch.sqrt((w*w).sum(-1,keepdim=True)+1e-12); k=w/th
    c,s=torch.cos(th),torch.sin(th)
    kx=torch.linalg.cross(k.expand_as(p),p)
    return p*c+kx*s+k*(k*p).sum(-1,keepdim=True)*(1-c)
fn("sci_rodrigues","reduction",rodr,(1,333,3),(9,333,3),train=True)
def euler(e):
    s,c=e.sin(),e.cos(); sx,sy,sz=s.unbind(-1); cx,cy,cz=c.unbind(-1)
    r0=torch.stack((cy*cz,sx*sy*cz-cx*sz,cx*sy*cz+sx*sz),-1); r1=torch.stack((cy*sz,sx*sy*sz+cx*cz,cx*sy*sz-sx*cz),-1); r2=torch.stack((-sy,sx*cy,cx*cy),-1)
    return torch.stack((r0,r1,r2),-2)
fn("sci_euler_to_mat","pointwise",euler,(777,3),train=True)
def sixd(d):
    a,b=d[...,:3],d[...,3:]; x=F.normalize(a,dim=-1); y=F.normalize(b-(x*b).sum(-1,keepdim=True)*x,dim=-1); z=torch.cross(x,y,dim=-1)
    return torch.stack([x,y,z],-2)
fn("sci_rot6d","reduction",sixd,(1037,6),train=True)
def geod(a,b):
    tr=(a*b).sum((-1,-2)); return torch.acos(((tr-1)/2).clamp(-1+1e-6,1-1e-6)).mean(-1)
fn("sci_geodesic_rot","reduction",geod,(15,77,3,3),(15,77,3,3),train=True)
def r2q(m):
    t=m[...,0,0]+m[...,1,1]+m[...,2,2]
    w=torch.sqrt(F.relu(1+t))/2; x=torch.sqrt(F.relu(1+m[...,0,0]-m[...,1,1]-m[...,2,2]))/2
    y=torch.sqrt(F.relu(1-m[...,0,0]+m[...,1,1]-m[...,2,2]))/2; z=torch.sqrt(F.relu(1-m[...,0,0]-m[...,1,1]+m[...,2,2]))/2
    x=torch.copysign(x,m[...,2,1]-m[...,1,2]); y=torch.copysign(y,m[...,0,2]-m[...,2,0]); z=torch.copysign(z,m[...,1,0]-m[...,0,1])
    return torch.stack([w,x,y,z],-1)
fn("sci_rot_to_quat","pointwise",r2q,(1234,3,3))
def slerp(a,b,t):
    d=(a*b).sum(-1,keepdim=True); b=torch.where(d<0,-b,b); d=d.abs().clamp(max=0.9995)
    th=torch.acos(d); s=torch.sin(th)
    o=torch.sin((1-t)*th)/s*a+torch.sin(t*th)/s*b
    return o/o.norm(dim=-1,keepdim=True)
fn("sci_slerp","reduction",slerp,(901,4),(901,4),ru(901,1))
def norms(v0,v1,v2):
    n=torch.cross(v1-v0,v2-v0,dim=-1); a=0.5*torch.linalg.vector_norm(n,dim=-1)
    return n/(2*a[...,None]+1e-9),a,(v0+v1+v2)/3
fn("sci_tri_normals","reduction",norms,(1111,3),(1111,3),(1111,3))
def gridn(h):
    dx=F.pad(h[:,:,2:]-h[:,:,:-2],(1,1))*0.5; dy=F.pad(h[:,2:]-h[:,:-2],(0,0,1,1))*0.5
    n=torch.stack((-dx,-dy,torch.ones_like(h)),1); return n*torch.rsqrt(n.square().sum(1,keepdim=True))
fn("sci_height_normals","reduction",gridn,(4,57,66),train=True)
def raysph(o,d,c,r):
    oc=o[:,None]-c; b=(oc*d[:,None]).sum(-1); cc=(oc*oc).sum(-1)-r*r; disc=b*b-cc
    hit=disc>0; sq=torch.sqrt(torch.where(hit,disc,torch.zeros_like(disc)))
    t0=-b-sq; t=torch.where(t0>1e-3,t0,-b+sq); t=torch.where(hit&(t>1e-3),t,torch.full_like(t,float("inf")))
    return t.amin(1),hit.any(1),t.argmin(1)
fn("sci_ray_sphere","reduction",raysph,(301,3),(301,3),(23,3),ru(23))
def raybox(o,d,lo,hi):
    inv=1/torch.where(d.abs()<1e-6,torch.full_like(d,1e-6),d)
    a=(lo-o)*inv; b=(hi-o)*inv
    tn=torch.minimum(a,b).amax(-1); tf=torch.maximum(a,b).amin(-1)
    return tn.clamp_min(0),tf,(tf>=tn.clamp_min(0))
fn("sci_ray_box","reduction",raybox,(7,300,3),(7,300,3),lambda:-torch.rand(3),lambda:torch.rand(3))
def proj(x,K,k):
    xc=x[...,0]/x[...,2].clamp(min=0.1); yc=x[...,1]/x[...,2].clamp(min=0.1)
    r2=xc*xc+yc*yc; rad=1+k[0]*r2+k[1]*r2**2+k[4]*r2**3
    xd=xc*rad+2*k[2]*xc*yc+k[3]*(r2+2*xc**2); yd=yc*rad+k[2]*(r2+2*yc**2)+2*k[3]*xc*yc
    return torch.stack((K[:,0:1]*xd+K[:,2:3],K[:,1:2]*yd+K[:,3:4]),-1),x[...,2]>0.1
fn("sci_camera_distort","pointwise",proj,(5,413,3),(5,4),(5,),train=True)
def fisheye(p):
    x,y,z=p.split(1,-1); r=torch.hypot(x,y); th=torch.atan2(r,z); t2=th*th
    td=th*(1+t2*(-0.01+t2*(0.003+t2*(-0.0005+t2*1e-5))))
    s=torch.where(r>1e-8,td/r,torch.ones_like(r))
    return torch.cat([x*s*320.5+160,y*s*318.25+120],-1)
fn("sci_fisheye","pointwise",fisheye,(2021,3))
def sdf(p):
    q=p.abs()-0.7; box=q.clamp(min=0).norm(dim=-1)+q.amax(-1).clamp(max=0)
    sph=p.norm(dim=-1)-0.9
    xz=torch.sqrt(p[...,0]**2+p[...,2]**2)-1.1; tor=torch.sqrt(xz**2+p[...,1]**2)-0.25
    h=(0.5+0.5*(sph-box)/0.3).clamp(0,1); sm=sph*(1-h)+box*h-0.3*h*(1-h)
    return torch.maximum(torch.minimum(sm,tor),-(sph+0.4))
fn("sci_sdf_smoothmin","reduction",sdf,(1999,3),train=True)
def smx(d): return -torch.logsumexp(-8.0*d,dim=1)/8.0+0.01*torch.sin(20*d).prod(1)
fn("sci_sdf_lse","reduction",smx,(35,6,48),train=False)
def phong(n,l,v,kd):
    n=F.normalize(n,dim=-1); l=F.normalize(l,dim=-1); v=F.normalize(v,dim=-1)
    nl=(n*l).sum(-1,keepdim=True); r=2*nl*n-l
    sp=(r*v).sum(-1,keepdim=True).clamp(min=0)**32
    return 0.1*kd+kd*nl.clamp(min=0)+0.5*torch.where(nl>0,sp,torch.zeros_like(sp))
fn("sci_phong","reduction",phong,(31,42,3),(3,),(31,42,3),ru(31,42,3),train=True)
def ggx(n,l,v,alb,rough,metal):
    h=F.normalize(l+v,dim=-1,eps=1e-6); dot=lambda a,b:(a*b).sum(-1,keepdim=True).clamp(1e-4,1.)
    nl,nv,nh,vh=dot(n,l),dot(n,v),dot(n,h),dot(v,h)
    a=rough**2; a2=a*a; D=a2/(math.pi*((nh*nh)*(a2-1)+1)**2)
    k=(rough+1)**2/8; G=nl/(nl*(1-k)+k)*nv/(nv*(1-k)+k)
    f0=0.04*(1-metal)+alb*metal; Fr=f0+(1-f0)*(1-vh)**5
    return ((1-Fr)*(1-metal)*alb/math.pi+D*G*Fr/(4*nl*nv))*nl
fn("sci_ggx_brdf","reduction",ggx,(1203,3),(1203,3),(1203,3),ru(1203,3),ru(1203,1),ru(1203,1),train=True)
def fres(c,n):
    s2=(1-c*c)/(n*n); ct=torch.sqrt((1-s2).clamp_min(0)); rs=((c-n*ct)/(c+n*ct)).square(); rp=((n*c-ct)/(n*c+ct)).square()
    return torch.where(s2>1,torch.ones_like(c),0.5*(rs+rp))
fn("sci_fresnel_dielectric","pointwise",fres,ru(66,85),lambda:torch.rand(85)+1)
fn("sci_aces","pointwise",lambda x:((x.relu()*(2.51*x.relu()+0.03))/(x.relu()*(2.43*x.relu()+0.59)+0.14)).clamp(0,1).pow(1/2.2),(3,3,51,44))
def hable(x,e):
    f=lambda x:((x*(0.15*x+0.05)+0.004)/(x*(0.15*x+0.5)+0.06))-0.02/0.3
    return f(x.abs()*e.exp2())/f(torch.full((1,),11.2))
fn("sci_hable_exposure","pointwise",hable,(4,3,37,50),(4,1,1,1),train=True)
def reinh(x):
    L=0.2126*x[:,0]+0.7152*x[:,1]+0.0722*x[:,2]; avg=torch.exp(torch.log(L+1e-4).mean((1,2),keepdim=True))
    s=0.18*L/avg; ld=s*(1+s/4.0)/(1+s); y=x*(ld/(L+1e-6)).unsqueeze(1)
    return torch.where(y<=0.0031308,12.92*y,1.055*y.clamp_min(1e-8)**(1/2.4)-0.055)
fn("sci_reinhard_srgb","reduction",reinh,ru(3,3,49,58),train=True)
def rgb2hsv(x):
    mx=x.amax(1); mn=x.amin(1); d=mx-mn; r,g,b=x.unbind(1); dd=d+1e-8
    h=torch.where(mx==r,torch.remainder((g-b)/dd,6.),torch.where(mx==g,(b-r)/dd+2,(r-g)/dd+4))/6
    return torch.stack((h,d/(mx+1e-8),mx),1)
fn("sci_rgb2hsv","reduction",rgb2hsv,ru(3,3,53,47))
def hsv2rgb(x):
    h,s,v=x.chunk(3,-1); k=torch.tensor([5.,3.,1.]); t=torch.remainder(k+h*6,6.0)
    return v-v*s*torch.minimum(torch.minimum(t,4-t),torch.ones_like(t)).clamp(min=0)
fn("sci_hsv2rgb","pointwise",hsv2rgb,ru(71,65,3))
def yuv(x):
    r,g,b=x[:,0:1],x[:,1:2],x[:,2:3]; y=0.299*r+0.587*g+0.114*b
    return torch.cat([y,0.492*(b-y)+0.5,0.877*(r-y)+0.5],1)
fn("sci_rgb2yuv","pointwise",yuv,(2,3,70,91),train=True)
def lab(x):
    lin=torch.where(x>0.04045,((x+0.055)/1.055)**2.4,x/12.92)
    r,g,b=lin.unbind(-1); X=(0.4124*r+0.3576*g+0.1805*b)/0.9505; Y=0.2126*r+0.7152*g+0.0722*b; Z=(0.0193*r+0.1192*g+0.9505*b)/1.089
    f=lambda t:torch.where(t>0.008856,t.clamp_min(1e-6).pow(1/3),7.787*t+16/116)
    X,Y,Z=f(X),f(Y),f(Z); return torch.stack([116*Y-16,500*(X-Y),200*(Y-Z)],-1)
fn("sci_rgb2lab","pointwise",lab,ru(45,86,3),train=True)
def comp(rgb,a):
    T=torch.cumprod(1-a+1e-10,1); T=torch.cat([torch.ones_like(T[:,:1]),T[:,:-1]],1); w=a*T
    return (w[...,None]*rgb).sum(1),w.sum(1),w
fn("sci_alpha_cumprod","scan",comp,(111,38,3),ru(111,38),train=True)
def nerf(x):
    f=2.0**torch.arange(7)*math.pi; y=x[...,None]*f
    return torch.cat([x,y.sin().flatten(-2),y.cos().flatten(-2)],-1)
fn("sci_nerf_posenc","pointwise",nerf,(9,71,3),train=True)
def volr(sig,c,z):
    d=torch.cat([z[:,1:]-z[:,:-1],torch.full_like(z[:,:1],1e10)],-1)
    al=1-torch.exp(-F.softplus(sig-1)*d); acc=torch.cumsum(F.pad(torch.log1p(-al+1e-10)[:,:-1],(1,0)),-1).exp()
    w=al*acc; rgb=(w[...,None]*c.sigmoid()).sum(-2); dep=(w*z).sum(-1); A=w.sum(-1)
    return rgb+(1-A[...,None]),dep/(A+1e-6),1/torch.clamp(dep/(A+1e-6),min=1e-10)
fn("sci_volume_render","scan",volr,(75,63),(75,63,3),lambda:torch.rand(75,63).cumsum(-1),train=True)
def sh3(d,k):
    x,y,z=d.unbind(-1); xx,yy,zz,xy,yz,xz=x*x,y*y,z*z,x*y,y*z,x*z
    B=torch.stack([torch.full_like(x,0.28209479),-0.48860251*y,0.48860251*z,-0.48860251*x,1.0925484*xy,-1.0925484*yz,0.31539157*(2*zz-xx-yy),-1.0925484*xz,0.54627422*(xx-yy),
      -0.59004359*y*(3*xx-yy),2.8906114*xy*z,-0.45704579*y*(4*zz-xx-yy),0.37317633*z*(2*zz-3*xx-3*yy),-0.45704579*x*(4*zz-xx-yy),1.4453057*z*(xx-yy),-0.59004359*x*(xx-3*yy)],-1)
    return torch.clamp_min((B[:,None]*k).sum(-1)+0.5,0)
fn("sci_sh_degree3","reduction",sh3,(407,3),(407,3,16),train=True)
def splat(mu,s,rho,op,col,gx,gy):
    dx=gx[None,:]-mu[:,0:1]; dy=gy[None,:]-mu[:,1:2]; sx,sy=s[:,0:1].exp(),s[:,1:2].exp(); r=torch.tanh(rho)[:,None]*0.95
    a=dx/sx; b=dy/sy; q=(a*a-2*r*a*b+b*b)/(1-r*r)
    al=(op.sigmoid()[:,None]*torch.exp(-0.5*q)).clamp(max=0.99); al=torch.where(al<1/255,torch.zeros_like(al),al)
    T=torch.cumprod(torch.cat([torch.ones_like(al[:1]),1-al[:-1]]),0)
    return torch.einsum("np,nc->pc",al*T,col)
fn("sci_gauss_splat","scan",splat,(31,2),(31,2),(31,),(31,),(31,3),(203,),(203,))
def bilin(img,gx,gy):
    B,C,H,W=img.shape; x=(gx+1)*0.5*(W-1); y=(gy+1)*0.5*(H-1)
    x0=x.floor().clamp(0,W-2); y0=y.floor().clamp(0,H-2); wx=(x-x0)[:,None]; wy=(y-y0)[:,None]; i=(y0*W+x0).long()
    f=img.flatten(2); g=lambda o:f.gather(2,(i+o)[:,None].expand(-1,C,-1))
    return (g(0)*(1-wx)+g(1)*wx)*(1-wy)+(g(W)*(1-wx)+g(W+1)*wx)*wy
fn("sci_bilinear_gather","pointwise",bilin,(2,5,23,34),lambda:torch.rand(2,311)*2-1,lambda:torch.rand(2,311)*2-1)
def bil2(img,x0,y0,wx,wy):
    a=img[:,y0,x0]; b=img[:,y0,x0+1]; c=img[:,y0+1,x0]; d=img[:,y0+1,x0+1]
    return torch.lerp(torch.lerp(a,b,wx),torch.lerp(c,d,wx),wy).relu()
fn("sci_bilinear_idx","pointwise",bil2,(7,31,42),ri(41,555),ri(30,555),ru(555),ru(555),train=True)
def hashg(p,tab):
    s=p*16.0; fl=s.floor(); fr=s-fl; i=fl.long(); out=0
    for dx in (0,1):
        for dy in (0,1):
            h=((i[:,0]+dx)*1)^((i[:,1]+dy)*2654435761)
            w=(fr[:,0] if dx else 1-fr[:,0])*(fr[:,1] if dy else 1-fr[:,1])
            out=out+w[:,None]*tab[h%509]
    return out
fn("sci_hash_grid2d","pointwise",hashg,ru(901,2),(509,4))
def hg3(p):
    i=(p*31.7).floor().to(torch.int32); h=(i[:,0]*73856093)^(i[:,1]*19349663)^(i[:,2]*83492791)
    return torch.remainder(h,4093),(h>>3)&255,((h&1)*2-1).float()*p[:,0]
fn("sci_hash_grid3d_ints","pointwise",hg3,ru(5003,3))
def geoh(lat,lon):
    a=(lat*0.5+0.5).clamp(0,1-1e-6)*32; b=(lon*0.5+0.5).clamp(0,1-1e-6)*32; i=a.floor(); j=b.floor(); code=torch.zeros_like(i)
    for k in range(5):
        p=2.0**k; code=code+torch.remainder(torch.floor(i/p),2)*4.0**k+torch.remainder(torch.floor(j/p),2)*2*4.0**k
    return code.long(),a-i,b-j
fn("sci_geohash_interleave","pointwise",geoh,(71,86),(71,86))
def popc(a,b):
    v=a^b; v=v-((v>>1)&0x55555555); v=(v&0x33333333)+((v>>2)&0x33333333); v=(v+(v>>4))&0x0F0F0F0F
    v=v+(v>>8); v=(v+(v>>16))&63
    return v.sum(-1), v.float().mean(-1)/32
fn("sci_hamming_popcount","reduction",popc,ri(2**31-1,38,1,27),ri(2**31-1,45,27))
def unpack(q,s,z):
    lo=(q&15).float(); hi=((q>>4)&15).float(); w=torch.stack((lo,hi),-1).flatten(-2)
    return ((w.view(w.shape[0],-1,16)-z[...,None])*s[...,None]).flatten(1)
fn("sci_int4_unpack","pointwise",unpack,lambda:torch.randint(0,256,(51,88),dtype=torch.uint8),(51,11),(51,11))
def dil(x):
    p=F.pad(x,(1,1,1,1),value=float("-inf")); H,W=x.shape[-2:]; o=p[...,:H,:W]
    for i in range(3):
        for j in range(3): o=torch.maximum(o,p[...,i:i+H,j:j+W])
    return o
fn("sci_dilate3x3","pointwise",dil,(3,55,74))
def tophat(x):
    e=torch.minimum(torch.minimum(torch.roll(x,1,-1),torch.roll(x,-1,-1)),x); o=torch.maximum(torch.maximum(torch.roll(e,1,-1),torch.roll(e,-1,-1)),e)
    g=x-o; return g, (g>0.5).float(), (x-e).mean(-1)
fn("sci_tophat_rows","reduction",tophat,(33,205),train=True)
def med3(x):
    a,b,c=x[...,:-2],x[...,1:-1],x[...,2:]; m=torch.maximum(torch.minimum(a,b),torch.minimum(torch.maximum(a,b),c))
    return torch.where((b-m).abs()>1.5*m.abs()+1e-3,m,b)
fn("sci_median3_hampel","pointwise",med3,(47,150),train=True)
def gameol(g):
    p=F.pad(g.float()[None,None],(1,1,1,1),mode="circular")[0,0]; H,W=g.shape
    n=sum(p[i:i+H,j:j+W] for i in range(3) for j in range(3) if (i,j)!=(1,1))
    return (n==3)|(g&(n==2))
fn("sci_game_of_life","pointwise",gameol,rb(.35,101,134))
def rule110(s):
    for _ in range(4):
        k=4*torch.roll(s,1,-1)+2*s+torch.roll(s,-1,-1); s=(110>>k)&1
    return s
fn("sci_rule110","pointwise",lambda s:((torch.full_like(s,110)>>(4*torch.roll(s,1,-1)+2*s+torch.roll(s,-1,-1)))&1),ri(2,63,190))
def nca(x,w):
    p=F.pad(x,(1,1,1,1)); H,W=x.shape[-2:]; s=lambda i,j:p[:,:,i:i+H,j:j+W]
    gx=(s(0,2)+2*s(1,2)+s(2,2)-s(0,0)-2*s(1,0)-s(2,0))/8; gy=(s(2,0)+2*s(2,1)+s(2,2)-s(0,0)-2*s(0,1)-s(0,2))/8
    dx=torch.einsum("oc,bchw->bohw",w,torch.cat([x,gx,gy],1)); alive=F.max_pool2d(x[:,3:4],3,1,1)>0.1
    return (x+torch.tanh(dx))*alive
fn("sci_neural_ca","block",nca,(2,6,29,38),(6,18),train=True)
def sobel(x):
    g=x.mean(1); p=F.pad(g,(1,1,1,1),mode="reflect"); H,W=g.shape[1:]; s=lambda i,j:p[:,i:i+H,j:j+W]
    gx=s(0,2)+2*s(1,2)+s(2,2)-s(0,0)-2*s(1,0)-s(2,0); gy=s(2,0)+2*s(2,1)+s(2,2)-s(0,0)-2*s(0,1)-s(0,2)
    mag=torch.sqrt(gx**2+gy**2+1e-6); ang=torch.atan2(gy,gx); q=((ang+math.pi)/(math.pi/4)).round()%4
    return mag,q,mag/mag.amax((1,2),keepdim=True)
fn("sci_sobel_dirs","reduction",sobel,ru(3,3,48,61),train=True)
def harris(x):
    p=F.pad(x[:,None],(1,1,1,1),mode="replicate")[:,0]; ix=(p[:,1:-1,2:]-p[:,1:-1,:-2])/2; iy=(p[:,2:,1:-1]-p[:,:-2,1:-1])/2
    bx=lambda t:F.avg_pool2d(t[:,None],3,1,1)[:,0]
    a,b,c=bx(ix*ix),bx(iy*iy),bx(ix*iy); return a*b-c*c-0.04*(a+b)**2
fn("sci_harris","pool",harris,(3,50,67))
def histeq(x):
    e=torch.linspace(0,1,17); h=((x[:,:,None]>=e[:-1])&(x[:,:,None]<e[1:])).float().sum(1); c=torch.cumsum(h,-1)
    c=(c-c[:,:1])/(c[:,-1:]-c[:,:1]).clamp_min(1.0); i=(x*16).long().clamp(0,15); return c.gather(1,i)
fn("sci_hist_equalise","scan",histeq,ru(13,203))
def softhist(x):
    c=torch.linspace(-2,2,21); w=0.2; h=torch.sigmoid((x.unsqueeze(-1)-c+w/2)*30)-torch.sigmoid((x.unsqueeze(-1)-c-w/2)*30)
    h=h.mean(1); p=h/(h.sum(-1,keepdim=True)+1e-6); return -(p*torch.log(p+1e-8)).sum(-1)
fn("sci_soft_histogram_entropy","reduction",softhist,(18,117),train=True)
def haar(x):
    a=x[...,0::2,0::2]; b=x[...,0::2,1::2]; c=x[...,1::2,0::2]; d=x[...,1::2,1::2]
    ll=(a+b+c+d)/2; lh=(a-b+c-d)/2; hl=(a+b-c-d)/2; hh=(a-b-c+d)/2
    st=lambda t:torch.sign(t)*F.relu(t.abs()-0.2); return torch.cat([ll,st(lh),st(hl),st(hh)],1)
fn("sci_haar2d_shrink","pointwise",haar,(2,5,46,58),train=True)
def ihaar(x):
    l,h=x.chunk(2,1); s=2**-0.5; y=torch.stack(((l+h)*s,(l-h)*s),-1).flatten(-2); return y-y.mean(-1,keepdim=True)
fn("sci_inverse_haar","reduction",ihaar,(5,22,107))
def dct(x):
    N=x.shape[-1]; n=torch.arange(N,dtype=x.dtype); k=n[:,None]; C=torch.cos(math.pi/N*(n+0.5)*k)*math.sqrt(2/N)
    C=torch.where(k==0,C/math.sqrt(2),C); y=x@C.T; q=torch.round(y/(0.1*(1+n)))*(0.1*(1+n)); return q@C
fn("sci_dct_quant","product",dct,(9,31,24))
def hann(x):
    n=torch.arange(x.shape[-1]); w=0.5*(1-torch.cos(2*math.pi*n/(x.shape[-1]-1))); y=(x-x.mean(-1,keepdim=True))*w
    return y,10*torch.log10(y.square().sum(-1)/w.square().sum()+1e-10)
fn("sci_hann_power","reduction",hann,(43,220),train=True)
def i0(x):
    t=(x/2)**2; s=torch.ones_like(x); term=torch.ones_like(x)
    for k in range(1,11): term=term*t/(k*k); s=s+term
    return s
def kais(x,beta):
    n=torch.arange(x.shape[-1],dtype=x.dtype); r=2*n/(x.shape[-1]-1)-1
    w=i0(beta[:,None]*torch.sqrt((1-r*r).clamp_min(0)))/i0(beta)[:,None]; return x*w
fn("sci_kaiser_series","pointwise",kais,(25,201),lambda:torch.rand(25)*6,train=True)
def bh(x):
    n=torch.arange(x.size(1))*(2*math.pi/x.size(1)); w=0.35875-0.48829*n.cos()+0.14128*(2*n).cos()-0.01168*(3*n).cos()
    return (x*w[None,:,None]).half()
fn("sci_blackman_harris","pointwise",bh,(4,123,17))
def fir(x,h):
    p=F.pad(x,(4,0)); T=x.shape[-1]; y=sum(h[:,k:k+1]*p[...,4-k:4-k+T] for k in range(5)); return y.tanh()+0.5*x
fn("sci_fir5_causal","pointwise",fir,(6,14,173),(14,5),train=True)
def savgol(x):
    T=x.shape[-1]; p=F.pad(x,(3,3),mode="reflect"); c=[-2,3,6,7,6,3,-2]; y=sum(ci*p[:,i:i+T] for i,ci in enumerate(c))/21.0
    r=x-y; return y,r.std(-1),r.abs().amax(-1)
fn("sci_savgol_resid","reduction",savgol,(19,243),train=True)
def goertz(x,f):
    n=torch.arange(x.shape[-1]); ph=2*math.pi*f[:,None]*n; re=(x[:,None]*ph.cos()).sum(-1); im=-(x[:,None]*ph.sin()).sum(-1)
    return torch.log1p(re*re+im*im),torch.atan2(im,re)
fn("sci_goertzel_bins","reduction",goertz,(14,133),lambda:torch.rand(11)*.5,train=True)
def acf(x):
    z=(x-x.mean(-1,keepdim=True)); v=(z*z).mean(-1)+1e-7; return torch.stack([(z[:,k:]*z[:,:-k]).mean(-1)/v for k in (1,2,5,12)],-1)
fn("sci_autocorr_lags","reduction",acf,(36,217),train=True)
def preemph(x):
    y=torch.cat((x[:,:1],x[:,1:]-0.97*x[:,:-1]),1); fr=y.unfold(1,25,10); fr=fr-fr.mean(-1,keepdim=True); e=torch.log(fr.pow(2).sum(-1).clamp_min(1.19e-7))
    zc=(fr[...,1:].sign()!=fr[...,:-1].sign()).float().mean(-1); return e,zc
fn("sci_frames_energy_zcr","reduction",preemph,(9,505),train=False)
def mulaw(x):
    m=255.; y=torch.sign(x)*torch.log1p(m*x.clamp(-1,1).abs())/math.log1p(m); q=((y+1)/2*m+0.5).to(torch.int32)
    d=q.float()/m*2-1; return q,torch.sign(d)*(torch.exp(d.abs()*math.log1p(m))-1)/m
fn("sci_mulaw","pointwise",mulaw,(8,1203))
def kal(x,Pm,z,Rn):
    a,b,c,d=Pm[...,0,0],Pm[...,0,1],Pm[...,1,0],Pm[...,1,1]; dt=0.1
    px=x[...,0]+dt*x[...,1]; pv=x[...,1]
    a2=a+dt*(b+c)+dt*dt*d+1e-3; b2=b+dt*d; c2=c+dt*d; d2=d+1e-2
    s=a2+F.softplus(Rn); k0,k1=a2/s,c2/s; r=z-px
    ll=-0.5*(r*r/s+torch.log(2*math.pi*s.abs()+1e-9))
    return torch.stack((px+k0*r,pv+k1*r),-1),torch.stack((torch.stack(((1-k0)*a2,(1-k0)*b2),-1),torch.stack((c2-k1*a2,d2-k1*b2),-1)),-2),ll.sum(-1)
fn("sci_kalman_cv_step","reduction",kal,(35,43,2),lambda:torch.rand(35,43,2,2)+torch.eye(2),(35,43),(43,),train=True)
def abf(x,v,z,dt):
    xp=x+v*dt; r=z-xp; return xp+0.85*r,v+0.005/dt*r,r.square().mean()
fn("sci_alpha_beta","reduction",abf,(101,77),(101,77),(101,77),lambda:torch.rand(77)+.1)
def pid(e,i,pe,k):
    kp,ki,kd=k.sigmoid().unbind(0); i2=(i+e*0.01).clamp(-5,5); d=(e-pe)/0.01; d=d/(1+d.abs()*1e-3); u=kp*e+ki*i2+kd*d
    us=torch.clamp(u,-12.,12.); return us,i2-(u-us)*0.1
fn("sci_pid_antiwindup","pointwise",pid,(66,91),(66,91),(66,91),(3,91),train=True)
def bs(S,K,T,r,sg):
    S,T,sg=S+0.5,T+0.05,sg+0.1; sq=sg*torch.sqrt(T); d1=(torch.log(S/K)+(r+0.5*sg*sg)*T)/sq; d2=d1-sq
    N=lambda x:0.5*(1+torch.erf(x/math.sqrt(2))); n=torch.exp(-0.5*d1*d1)/math.sqrt(2*math.pi); df=torch.exp(-r*T)
    call=S*N(d1)-K*df*N(d2); put=call-S+K*df; return call,put,N(d1),n/(S*sq),S*n*torch.sqrt(T),-(S*n*sg)/(2*torch.sqrt(T))-r*K*df*N(d2)
fn("sci_black_scholes_greeks","pointwise",bs,ru(47,1),lambda:torch.rand(1,93)+.5,ru(93),lambda:torch.rand(47,1)*.05,ru(47,93),train=True)
def payoff(p,K):
    ST=p[:,-1]; avg=p.mean(1); mx=p.amax(1); mn=p.amin(1)
    return torch.stack([F.relu(ST-K).mean(),F.relu(K-avg).mean(),(F.relu(ST-K)*(mx<1.8)).mean(),(mx-ST).mean(),((ST>K)&(mn>0.2)).float().mean()])*math.exp(-0.03)
fn("sci_option_payoffs","reduction",payoff,lambda:torch.rand(203,85)*2,ru(203))
def gbm(z,s0,mu,sg):
    dt=1/252; lr=(mu-0.5*sg**2)*dt+sg*math.sqrt(dt)*z; path=s0*torch.exp(torch.cumsum(lr,1)); return path,F.relu(path.mean(1)-s0[:,0])
fn("sci_gbm_asian","scan",gbm,(73,126),lambda:torch.rand(73,1)+1,(73,1),ru(73,1),train=True)
def pvar(w,r):
    w=torch.softmax(w,-1); m=r.mean(0); c=(r-m).T@(r-m)/(r.shape[0]-1); v=torch.einsum("bi,ij,bj->b",w,c,w); return (w@m-0.02/252)/torch.sqrt(v+1e-12)-1e-3*(w*w).sum(-1)
fn("sci_portfolio_sharpe","product",pvar,(23,38),(151,38),train=True)
def ddown(r):
    c=torch.cumsum(torch.log1p(0.02*r.clamp(-3,3)),-1); pk=torch.cummax(c,-1).values; dd=1-torch.exp(c-pk); return dd.amax(-1),torch.sqrt((dd**2).mean(-1)),c[:,-1]/(dd.amax(-1)+1e-6)
fn("sci_drawdown_calmar","scan",ddown,(37,201))
def sharpe(r,b):
    e=r-b; sd=e.std(-1,unbiased=True); dn=torch.sqrt(torch.clamp(e,max=0).square().mean(-1)); return math.sqrt(252)*e.mean(-1)/(sd+1e-9),e.mean(-1)/dn.clamp_min(1e-6),(e>0).float().mean(-1),((e-e.mean(-1,True))**3).mean(-1)/sd**3
fn("sci_sharpe_sortino_skew","reduction",sharpe,(55,250),(250,),train=True)
def bond(y,c,t):
    y=y.sigmoid()*0.1; cf=c[:,None]*0.5+100*(torch.arange(t.shape[0])==t.shape[0]-1); d=(1+y[:,None]/2)**(-2*t); pv=cf*d; p=pv.sum(1); dur=(pv*t).sum(1)/p; cx=(pv*t*(t+0.5)).sum(1)/(p*(1+y/2)**2)
    return p,dur/(1+y/2),cx
fn("sci_bond_duration","reduction",bond,(161,),ru(161),lambda:torch.arange(1,42)*0.5,train=True)
def sabr(f,k,t,a,rho,nu):
    b=0.5; rho=torch.tanh(rho)*0.9; f=f+0.5;k=k+0.5; lg=torch.log(f/k); fk=(f*k)**((1-b)/2); z=nu/a*fk*lg
    xz=torch.log((torch.sqrt(1-2*rho*z+z*z)+z-rho)/(1-rho)); zx=torch.where(z.abs()<1e-4,1-0.5*rho*z,z/xz)
    den=fk*(1+(1-b)**2/24*lg**2+(1-b)**4/1920*lg**4); cor=1+((1-b)**2/24*a*a/fk**2+rho*b*nu*a/(4*fk)+(2-3*rho*rho)/24*nu*nu)*t
    return a/den*zx*cor
fn("sci_sabr_vol","pointwise",sabr,ru(31,1,1),ru(1,17,1),ru(29),lambda:torch.rand(31,1,1)+.2,(31,1,1),ru(31,1,1),train=True)
def garch(r,w,a,b):
    s=[r[:,0]**2+1e-4]
    for t in range(1,9): s.append(w.exp()*0.01+a.sigmoid()*0.3*r[:,t-1]**2+b.sigmoid()*0.7*s[-1])
    s=torch.stack(s,1); return 0.5*(torch.log(s)+r**2/s).sum(1)
fn("sci_garch_unrolled","loss",garch,(317,9),(317,),(317,),(317,),train=True)
def seir(S,E,I,Rr,beta,C):
    N=S+E+I+Rr+1e-3; lam=beta.sigmoid()*((I/N)@C.softmax(-1).T); inf=lam*S; on=E/5.2; rec=I/2.9
    return torch.stack([S-inf+0.01*Rr,E+inf-on,I+on-rec,Rr+rec-0.01*Rr],1)/N[:,None]
fn("sci_seir_groups","product",seir,ru(67,18),ru(67,18),ru(67,18),ru(67,18),(18,),(18,18),train=True)
def lotka(x,y):
    h=0.05
    for _ in range(3):
        dx=1.1*x-0.4*x*y; dy=0.1*x*y-0.4*y; mx=x+0.5*h*dx; my=y+0.5*h*dy; x=x+h*(1.1*mx-0.4*mx*my); y=y+h*(0.1*mx*my-0.4*my)
    return x,y,0.1*x-0.4*torch.log(x.abs()+1e-6)+0.4*y-1.1*torch.log(y.abs()+1e-6)
fn("sci_lotka_midpoint3","pointwise",lotka,ru(89,104),ru(89,104),train=True)
def hh(V,m,h,n,I):
    V=V*20-60; ex=lambda x:torch.where(x.abs()<1e-4,1-x/2,x/torch.expm1(x))
    am=ex(-(V+40)/10); bm=4*torch.exp(-(V+65)/18); ah=0.07*torch.exp(-(V+65)/20); bhh=1/(1+torch.exp(-(V+35)/10)); an=0.1*ex(-(V+55)/10); bn=0.125*torch.exp(-(V+65)/80)
    ina=120*m**3*h*(V-50); ik=36*n**4*(V+77); il=0.3*(V+54.4); dt=0.01
    return V+dt*(I-ina-ik-il),m+dt*(am*(1-m)-bm*m),h+dt*(ah*(1-h)-bhh*h),n+dt*(an*(1-n)-bn*n)
fn("sci_hodgkin_huxley","pointwise",hh,(35,66),ru(35,66),ru(35,66),ru(35,66),(66,),train=True)
def fhn(v,w):
    lap=torch.roll(v,1,0)+torch.roll(v,-1,0)+torch.roll(v,1,1)+torch.roll(v,-1,1)-4*v; return v+0.02*(v-v**3/3-w+0.5+lap),w+0.02*0.08*(v+0.7-0.8*w)
fn("sci_fitzhugh_nagumo","pointwise",fhn,(77,118),(77,118),train=True)
def lj(x,box):
    d=x[:,None]-x[None]; d=d-box*torch.round(d/box); r2=(d*d).sum(-1)+torch.eye(x.shape[0])*1e3
    ok=(r2<6.25); ir6=(0.81/r2.clamp_min(0.3))**3; e=torch.where(ok,4*(ir6*ir6-ir6)+0.0163,torch.zeros_like(r2))
    f=torch.where(ok,24*(2*ir6*ir6-ir6)/r2,torch.zeros_like(r2)); return 0.5*e.sum(),(f[...,None]*d).sum(1),e.sum(1)
fn("sci_lennard_jones_pbc","reduction",lj,lambda:torch.rand(87,3)*6,lambda:torch.full((3,),6.0))
def morse(r,D,a,r0):
    x=torch.exp(-a*(r-r0)); e=D*(1-x)**2-D; t=((r-1.5)/1.0).clamp(0,1); sw=1-10*t**3+15*t**4-6*t**5; return (e*sw).sum(-1)
fn("sci_morse_switched","reduction",morse,lambda:torch.rand(143,65)*3,(65,),ru(65),lambda:torch.rand(65)+.5,train=True)
def behler(r,eta,rs):
    fc=0.5*(torch.cos(math.pi*r/6.0)+1)*(r<6.0); return (torch.exp(-eta[None,None,:,None]*(r[:,:,None,None]-rs)**2)*fc[:,:,None,None]).sum(1).flatten(1)
fn("sci_behler_g2","reduction",behler,lambda:torch.rand(27,31)*8,ru(5),lambda:torch.rand(7)*4,train=True)
def g4(r,c):
    fc=0.5*(torch.cos(math.pi*r/5)+1)*(r<5).float(); a=(1+0.9*c).clamp_min(0)**4*2**(-3); w=fc[:,:,None]*fc[:,None,:]; g=torch.exp(-0.05*(r[:,:,None]**2+r[:,None]**2)); m=1-torch.eye(r.shape[1])
    return 0.5*(a*w*g*m).sum((-1,-2))
fn("sci_behler_g4_angular","reduction",g4,lambda:torch.rand(45,22)*7,lambda:torch.rand(45,22,22)*2-1,train=True)
def bessel(r):
    n=torch.arange(1,9); u=r[...,None]/4.5; env=1/u-28*u**5+48*u**6-21*u**7; return torch.where(u<1,env*math.sqrt(2/4.5)*torch.sin(n*math.pi*u),torch.zeros_like(u))
fn("sci_dimenet_bessel","pointwise",bessel,lambda:torch.rand(37,41)*6+.2,train=True)
def coul(q,x):
    r=torch.cdist(x,x)+1e-3; a=0.35; e=q[:,:,None]*q[:,None]*torch.erfc(a*r)/r; e=e*(1-torch.eye(x.shape[1])); return 332.0637*0.5*e.sum((1,2))-a/math.sqrt(math.pi)*(q**2).sum(1)
fn("sci_ewald_real","reduction",coul,(5,53),(5,53,3))
def dihed(a,b,c,d):
    b1,b2,b3=b-a,c-b,d-c; n1=torch.cross(b1,b2,-1); n2=torch.cross(b2,b3,-1); m=torch.cross(n1,b2/b2.norm(dim=-1,keepdim=True),-1)
    phi=torch.atan2((m*n2).sum(-1),(n1*n2).sum(-1)); return 1.4*(1+torch.cos(3*phi-0.5))+0.3*(1-torch.cos(2*phi)),phi
fn("sci_dihedral","reduction",dihed,(731,3),(731,3),(731,3),(731,3),train=True)
def angE(x):
    u=F.normalize(x[:,:-2]-x[:,1:-1],dim=-1); v=F.normalize(x[:,2:]-x[:,1:-1],dim=-1); c=(u*v).sum(-1).clamp(-0.999,0.999); t=torch.acos(c); return 50*(t-1.911).square().sum(1)+2*torch.relu(c-0.3).sum(1)
fn("sci_bond_angles","reduction",angE,(23,77,3),train=True)
def schnet(h,r,m,W1,W2,b):
    mu=torch.linspace(0,5,16); e=torch.exp(-10*(r[...,None]-mu)**2); f=F.softplus(e@W1+b)-math.log(2); f=(f@W2)*(0.5*(torch.cos(r*math.pi/5)+1)*(r<5)*m)[...,None]
    return h+(h[:,None]*f).sum(2)
fn("sci_schnet_cfconv","block",schnet,(2,19,22),lambda:torch.rand(2,19,19)*6,rb(.8,2,19,19),(16,22),(22,22),(22,))
def gat(h,A,W,a1,a2):
    z=h@W; e=F.leaky_relu((z*a1).sum(-1)[:,:,None]+(z*a2).sum(-1)[:,None,:],0.2); e=e.masked_fill(~A,float("-inf")); al=torch.softmax(e,-1).nan_to_num(0.0); return F.elu(al@z)+h
fn("sci_gat_dense","block",gat,(3,37,26),rb(.4,3,37,37),(26,26),(26,),(26,),train=True)
def gcn(x,A,W):
    A=A.float()+torch.eye(A.shape[-1]); d=A.sum(-1).clamp_min(1).rsqrt(); return F.relu((d[...,None]*A*d[...,None,:])@(x@W))
fn("sci_gcn_norm","product",gcn,(4,45,22),rb(.2,4,45,45),(22,34),train=True)
def egnn(h,x,m,l1,l2,l3):
    d=x[:,:,None]-x[:,None]; r2=(d**2).sum(-1,keepdim=True); e=F.silu(h@l1)[:,:,None]+F.silu(h@l2)[:,None]-0.1*r2; e=F.silu(e)*m[...,None]
    w=torch.tanh((e*l3).sum(-1,keepdim=True)); return x+(d/(r2.sqrt()+1)*w).sum(2)/(m.sum(-1,keepdim=True)+1e-3),h+e.sum(2)
fn("sci_egnn_layer","block",egnn,(2,23,14),(2,23,3),lambda:(torch.rand(2,23,23)<.6).float(),(14,14),(14,14),(14,),train=False)
def pna(x,m):
    n=m.sum(-1,keepdim=True).clamp(min=1); mm=m[...,None]; xe=x[:,None]; mean=(xe*mm).sum(2)/n; var=F.relu(((xe**2)*mm).sum(2)/n-mean**2); mx=torch.where(mm>0,xe,torch.tensor(-1e9)).amax(2); mx=torch.where(mx<-1e8,torch.zeros_like(mx),mx)
    s=torch.log(n+1)/2.1; a=torch.cat([mean,torch.sqrt(var+1e-5),mx],-1); return torch.cat([a,a*s,a/s],-1)
fn("sci_pna_aggregators","reduction",pna,(3,29,17),lambda:(torch.rand(3,29,29)<.3).float())
class Lap(nn.Module):
    def __init__(s): super().__init__(); s.l=nn.Linear(18,18); s.g=nn.GRUCell(18,18)
    def forward(s,h,A):
        m=torch.bmm(A/(A.sum(2,keepdim=True)+1e-6),s.l(h)); return s.g(m.flatten(0,1),h.flatten(0,1)).view_as(h)
add("sci_ggnn","block",lambda:(Lap(),(R(3,27,18,requires_grad=True),torch.rand(3,27,27,requires_grad=True))),True)
fn("sci_transe","loss",lambda h,r,t,n:F.relu(1.0+(h+r-t).abs().sum(-1,keepdim=True)-(h[:,None]+r[:,None]-n).norm(p=1,dim=-1)).mean(),(61,34),(61,34),(61,34),(61,9,34),train=True)
def rotate(h,ph,t):
    hr,hi=h.chunk(2,-1); tr,ti=t.chunk(2,-1); c,s=torch.cos(ph/0.05*math.pi),torch.sin(ph/0.05*math.pi); a=hr*c-hi*s; b=hr*s+hi*c; a=a[:,None]-tr; b=b[:,None]-ti
    sc=12.0-torch.stack([a,b]).norm(dim=0).sum(-1); p=torch.softmax(sc*0.5,-1).detach(); return -(p*F.logsigmoid(-sc)).sum(1).mean()
fn("sci_rotate_selfadv","loss",rotate,(43,42),(43,21),(43,11,42),train=True)
fn("sci_complex_score","reduction",lambda hr,hi,rr,rim,tr,ti:torch.sigmoid((hr*rr*tr+hi*rr*ti+hr*rim*ti-hi*rim*tr).sum(-1))+0.01*(hr.abs()**3+hi.abs()**3+tr.abs()**3).mean(-1),*[(215,54)]*6,train=True)
fn("sci_distmult_all","product",lambda e,r,h:F.log_softmax((e[h]*r.tanh())@e.T/math.sqrt(30),-1),(101,30),(37,30),ri(101,37),train=True)
def transh(h,t,w,d):
    w=F.normalize(w,dim=-1); hp=h-(h*w).sum(-1,True)*w; tp=t-torch.sum(t*w,-1,keepdim=True)*w; return (hp+d-tp).pow(2).sum(-1).sqrt()
fn("sci_transh","reduction",transh,*[(307,51)]*4,train=True)
def poinc(u,v):
    uu=(u*u).sum(-1).clamp(max=1-1e-5); vv=(v*v).sum(-1).clamp(max=1-1e-5); d=(u-v).square().sum(-1); x=1+2*d/((1-uu)*(1-vv)); return torch.log(x+torch.sqrt((x*x-1).clamp_min(1e-9)))
fn("sci_poincare_dist","reduction",poinc,lambda:torch.randn(71,1,14)*.1,lambda:torch.randn(1,53,14)*.1)
def mobadd(x,y):
    xy=(x*y).sum(-1,keepdim=True); x2=x.pow(2).sum(-1,keepdim=True); y2=y.pow(2).sum(-1,keepdim=True); z=((1+2*xy+y2)*x+(1-x2)*y)/(1+2*xy+x2*y2).clamp_min(1e-6); n=z.norm(dim=-1,keepdim=True).clamp_min(1e-6)
    return torch.where(n>0.999,z/n*0.999,z), torch.atanh(n.clamp(max=0.999))*z/n
fn("sci_mobius_add_log","reduction",mobadd,lambda:torch.randn(411,23)*.1,lambda:torch.randn(411,23)*.1,train=True)
def din(q,k,m,l1,l2):
    qq=q[:,None].expand_as(k); a=torch.cat([qq,k,qq-k,qq*k],-1); s=l2(torch.sigmoid(l1(a))).squeeze(-1)/math.sqrt(q.shape[-1]); s=s.masked_fill(~m,-2**31+1.0); return (s.softmax(-1)[...,None]*k).sum(1)
def dinl(l1,l2,q,k,m): return din(q,k,m,l1,l2)
fn("sci_din_attention","block",dinl,(33,14),(33,21,14),rb(.7,33,21),layers=lambda:(nn.Linear(56,18),nn.Linear(18,1)),train=True)
fn("sci_fm_second_order","reduction",lambda v,w:torch.sigmoid(w.sum(1)+0.5*(v.sum(1).pow(2)-v.pow(2).sum(1)).sum(-1)),(131,17,22),(131,17),train=True)
def dcn(x,w,b):
    x0=x
    for i in range(3): x=x0*(x@w[i])[:,None]+b[i]+x
    return x
fn("sci_cross_v1","block",dcn,(73,58),(3,58),(3,58),train=True)
fn("sci_cross_v2_gated","block",lambda l1,l2,g,x:x*torch.sigmoid(g(x))*l2(l1(x).tanh())+x,(77,62),layers=lambda:(nn.Linear(62,15,bias=False),nn.Linear(15,62),nn.Linear(62,1)),train=True)
def twot(u,i,lq):
    u=F.normalize(u,dim=-1); i=F.normalize(i,dim=-1); s=u@i.T/0.05-lq; m=torch.eye(u.shape[0],dtype=torch.bool); return -(s.log_softmax(-1)*m).sum(-1).mean(),(s.argmax(-1)==torch.arange(u.shape[0])).float().mean()
fn("sci_two_tower_logq","loss",twot,(57,30),(57,30),(57,),train=True)
def bpr(u,p,n): x=(u*(p-n)).sum(-1); return -F.logsigmoid(x).mean()+1e-4*(u.square().sum(-1)+p.square().sum(-1)+n.square().sum(-1)).mean()/2
fn("sci_bpr","loss",bpr,(253,38),(253,38),(253,38),train=True)
class AFM(nn.Module):
    def __init__(s): super().__init__(); s.a=nn.Linear(10,6); s.h=nn.Parameter(R(6)); s.p=nn.Linear(10,1,bias=False)
    def forward(s,v):
        n=v.shape[1]; i,j=torch.triu_indices(n,n,1); e=v[:,i]*v[:,j]; w=torch.softmax((F.relu(s.a(e))*s.h).sum(-1),1); return s.p((w.unsqueeze(-1)*e).sum(1)).squeeze(1)
add("sci_afm","block",lambda:(AFM(),(R(45,9,10,requires_grad=True),)),True)
def mmoe(x,We,Wg):
    e=F.relu(torch.einsum("bi,eio->beo",x,We)); g=torch.einsum("bi,tie->tbe",x,Wg).softmax(-1); return torch.einsum("tbe,beo->tbo",g,e).sigmoid()
fn("sci_mmoe","block",mmoe,(63,26),(5,26,18),(3,26,5),train=True)
def dice(x,a): 
    m=x.mean(0,keepdim=True); v=x.var(0,unbiased=False,keepdim=True); p=torch.sigmoid((x-m)/torch.sqrt(v+1e-9)); return p*x+(1-p)*a*x
fn("sci_dice_act","norm",dice,(155,42),(42,),train=True)
def softtree(x,w,b,leaf):
    p=torch.sigmoid((torch.einsum("bf,tfd->btd",x,w)-b)*2); l0=torch.stack([p[...,0],1-p[...,0]],-1); l1=torch.stack([p[...,1],1-p[...,1]],-1); l2=torch.stack([p[...,2],1-p[...,2]],-1)
    m=(l0[...,:,None,None]*l1[...,None,:,None]*l2[...,None,None,:]).flatten(2); return (m*leaf).sum((1,2))
fn("sci_soft_oblivious_tree","block",softtree,(51,14),(9,14,3),(9,3),(9,8),train=True)
def stump(x,th,lv,rv): return torch.where(x[:,:,None]<th,lv,rv).sum((1,2))*0.1+0.5
fn("sci_stump_sum","reduction",stump,(71,23),(23,17),(23,17),(23,17))
def kde(x,d,h):
    s=F.softplus(h)+1e-2; z=(x[:,None]-d[None])/s; lp=-0.5*z.pow(2).sum(-1)-s.log().sum()-0.5*x.shape[-1]*math.log(2*math.pi); return torch.logsumexp(lp,1)-math.log(d.shape[0])
fn("sci_kde","reduction",kde,(81,5),(67,5),(5,),train=True)
def gmm(x,pi,mu,ls):
    lp=F.log_softmax(pi,-1)-0.5*(((x[:,None]-mu)*torch.exp(-ls))**2).sum(-1)-ls.sum(-1)-0.5*mu.shape[-1]*1.8378770664; ll=lp.logsumexp(-1); r=torch.exp(lp-ll[:,None]); N=r.sum(0)+1e-6; mn=(r.T@x)/N[:,None]; vr=(r.T@(x*x))/N[:,None]-mn**2
    return ll.mean(),N/x.shape[0],mn,vr.clamp(min=1e-4)
fn("sci_gmm_em","block",gmm,(213,11),(9,),(9,11),(9,11))
def mdn(o,y):
    a,m,s=o.chunk(3,-1); s=s.clamp(-7,5); return -torch.logsumexp(F.log_softmax(a,-1)-s-0.5*((y[:,None]-m)/s.exp())**2-0.9189,-1).mean()
fn("sci_mdn_nll","loss",mdn,(207,51),(207,),train=True)
def hmm(al,A,e):
    x=al[:,:,None]+A.log_softmax(-1)[None]; m=x.amax(1,keepdim=True); return (x-m).exp().sum(1).log()+m.squeeze(1)+e
fn("sci_hmm_forward_step","reduction",hmm,(37,23),(23,23),(37,23),train=True)
def crf(s,t,e,m):
    n=torch.logsumexp(s.unsqueeze(2)+t+e.unsqueeze(1),1); s2=torch.where(m.unsqueeze(1),n,s); v,i=(s.unsqueeze(2)+t).max(1); return s2,v+e,i
fn("sci_crf_viterbi_step","reduction",crf,(29,18),(18,18),(29,18),rb(.8,29))
def beam(lp,sc,L,done):
    V=lp.shape[-1]; l=F.log_softmax(lp/0.8,-1); l=torch.where(done[...,None],torch.where(torch.arange(V)==2,0.0,-1e9),l); t=sc[...,None]+l; n=((5+L)/6.0)**0.6; return (t/n[...,None]).flatten(1),torch.exp(t-t.amax((1,2),keepdim=True))
fn("sci_beam_length_penalty","reduction",beam,(5,4,203),(5,4),lambda:torch.randint(1,30,(5,4)).float(),rb(.2,5,4))
def coup(x,c,l1,l2):
    a,b=x.chunk(2,1); h=l2(torch.cat((a,c),1).mul(0.5)); s,t=h.chunk(2,1); s=2*torch.tanh(s/2); y=b*s.exp()+t; return torch.cat([y,a],1),s.sum(1)-0.5*(y**2).sum(1)
fn("sci_affine_coupling","block",lambda l,x,c:coup(x,c,None,l),(71,44),(71,9),layers=lambda:(nn.Linear(31,44),),train=True)
def planar(z,u,w,b):
    wu=w@u; u=u+(F.softplus(wu)-1-wu)*w/(w*w).sum(); a=torch.tanh(z@w+b); return z+u*a[:,None],torch.log((1+(1-a*a)*(w@u)).abs()+1e-8)
fn("sci_planar_flow","block",planar,(143,31),(31,),(31,),(1,),train=True)
def radial(z,z0,la,be):
    a=F.softplus(la); b=-a+F.softplus(be); d=z-z0; r=d.norm(dim=-1,keepdim=True); h=1/(a+r); D=z.shape[-1]; return z+b*h*d,(D-1)*torch.log1p(b*h)+torch.log1p(b*h-b*r*h*h)
fn("sci_radial_flow","reduction",radial,(157,27),(27,),(1,),(1,),train=True)
def actn(x,ls,b):
    y=(x+b[:,None,None])*ls.exp()[:,None,None]; n,c,h,w=x.shape; ld=h*w*ls.sum(); lp=-0.5*(y*y+math.log(2*math.pi)).sum((1,2,3)); return y,(lp+ld)/(math.log(2)*c*h*w)
fn("sci_actnorm_bpd","reduction",actn,(6,7,18,22),(7,),(7,),train=True)
def rqs(x,w,h,d):
    w=1e-3+(1-1e-3*8)*w.softmax(-1); h=1e-3+(1-8e-3)*h.softmax(-1); cw=F.pad(w.cumsum(-1),(1,0))*6-3; ch=F.pad(h.cumsum(-1),(1,0))*6-3; d=1e-3+F.softplus(d)
    inside=(x>-3)&(x<3); xi=x.clamp(-2.999,2.999); i=((xi[...,None]>=cw).sum(-1,keepdim=True)-1).clamp(0,7); g=lambda t,j:t.gather(-1,j).squeeze(-1)
    x0,x1,y0,y1,d0,d1=g(cw,i),g(cw,i+1),g(ch,i),g(ch,i+1),g(d,i),g(d,i+1); s=(y1-y0)/(x1-x0); t=(xi-x0)/(x1-x0); q=t*(1-t); den=s+(d1+d0-2*s)*q
    y=y0+(y1-y0)*(s*t*t+d0*q)/den; ld=2*s.log()+torch.log(d1*t*t+2*s*q+d0*(1-t)**2)-2*den.log(); return torch.where(inside,y,x),torch.where(inside,ld,0.0).sum(-1)
fn("sci_rq_spline","scan",rqs,(53,21),(53,21,8),(53,21,8),(53,21,9),train=True)
fn("sci_inv_softplus_logit","pointwise",lambda x,y:(torch.where(x>20,x,x.clamp(min=1e-3).expm1().log()),torch.log(y.clamp(1e-5,1-1e-5))-torch.log1p(-y.clamp(1e-5,1-1e-5))),(101,87),ru(101,87),train=True)
def deq(x,n):
    y=(x.float()+n)/256; y=0.05+0.9*y; l=torch.log(y)-torch.log(1-y); return l,(F.softplus(l)+F.softplus(-l)-math.log(0.9)).flatten(1).sum(1)
fn("sci_dequant_logit","reduction",deq,ri(256,7,3,17,22),ru(7,3,17,22))
def adam(p,g,m,v,s):
    t=s.float(); m=0.9*m+0.1*g; v=0.999*v+0.001*g*g; mh=m/(1-0.9**t); vh=v/(1-0.999**t); return p-1e-3*mh/(vh.sqrt()+1e-8),m,v
fn("sci_adam_step","pointwise",adam,(97,103),(97,103),(97,103),ru(97,103),lambda:torch.tensor(7))
def adamw(p,g,m,v,lr):
    p=p*(1-lr*0.01); m=torch.lerp(m,g,0.1); v=torch.addcmul(0.95*v,g,g,value=0.05); return torch.addcdiv(p,m,v.sqrt().add(1e-8),value=-3e-4),m,v
fn("sci_adamw_addc","pointwise",adamw,(61,150),(61,150),(61,150),ru(61,150),lambda:torch.tensor(0.001))
def lion(p,g,m): u=torch.sign(0.9*m+0.1*g); return p-1e-4*(u+0.1*p),0.99*m+0.01*g,(u!=m.sign()).float().mean()
fn("sci_lion","reduction",lion,(83,141),(83,141),(83,141))
def lamb(p,g,m,v):
    g=g/torch.clamp(g.norm(),min=1.0); m=0.9*m+0.1*g; v=0.999*v+0.001*g**2; u=(m/0.19)/(torch.sqrt(v/0.001999)+1e-6)+0.01*p; wn=p.norm().clamp(0,10); un=u.norm(); r=torch.where((wn>0)&(un>0),wn/un,torch.ones_like(wn)); return p-1e-3*r*u,m,v
fn("sci_lamb","reduction",lamb,(107,95),(107,95),(107,95),ru(107,95))
def adaf(p,g,r,c):
    s=g*g+1e-30; r=0.98*r+0.02*s.mean(-1); c=0.98*c+0.02*s.mean(-2); u=g*(r/r.mean()).rsqrt()[:,None]*c.rsqrt()[None]; u=u/torch.clamp(u.square().mean().sqrt()/1.0,min=1.0); sc=torch.clamp(p.square().mean().sqrt(),min=1e-3); return p-0.01*sc*u,r,c
fn("sci_adafactor","reduction",adaf,(94,117),(94,117),ru(94),ru(117))
def rmsp(p,g,sq,ga,b):
    sq=sq*0.99+g*g*0.01; ga=ga*0.99+g*0.01; av=(sq-ga*ga).clamp(min=0).sqrt()+1e-8; b=0.9*b+g/av; return p-0.01*b,sq,ga,b
fn("sci_rmsprop_centered","pointwise",rmsp,(5,41,55),(5,41,55),lambda:torch.rand(5,41,55)+1,(5,41,55),(5,41,55))
def sgdn(p,g,b,e): g=g+5e-4*p; b=0.9*b+g; p=p-0.1*(g+0.9*b); return p,b,0.999*e+0.001*p
fn("sci_nesterov_ema","pointwise",sgdn,(203,66),(203,66),(203,66),(203,66))
def clipg(a,b,c): n=torch.sqrt(a.float().pow(2).sum()+b.float().pow(2).sum()+c.float().pow(2).sum()); k=(1.0/(n+1e-6)).clamp(max=1.0); return a*k,b*k,(c*k).clamp(-0.5,0.5),n
fn("sci_clip_global_norm","reduction",clipg,(71,45),rh(33,58),(190,))
def agc(p,g): pn=p.norm(dim=1,keepdim=True).clamp_min(1e-3); gn=torch.linalg.norm(g,dim=1,keepdim=True); mx=pn*0.01; return torch.where(gn>mx,g*(mx/gn.clamp_min(1e-6)),g)
fn("sci_adaptive_grad_clip","reduction",agc,(85,121),(85,121))
def cosl(st,g): s=st.float(); w=s/50; c=0.5*(1+torch.cos(math.pi*((s-50)/450).clamp(0,1))); lr=torch.where(s<50,w,0.1+0.9*c)*3e-4; return lr[:,None]*g
fn("sci_cosine_warmup","pointwise",cosl,ri(600,151),(151,77))
def adabel(p,g,m,s): m2=m.mul(0.9).add(g,alpha=0.1); s2=s*0.999+(g-m2).square()*0.001+1e-16; rho=5.2; r=math.sqrt((rho-4)*(rho-2)/3.1); return p.sub(r*1e-3*m2/s2.sqrt().add(1e-12)),m2,s2
fn("sci_adabelief_f16","pointwise",adabel,(77,109),rf(77,109),(77,109),ru(77,109))
def muonpre(g,b): b=0.95*b+g; u=(g+0.95*b); u=u/(u.norm()+1e-7); A=u@u.T; return 3.4445*u+(-4.775*A+2.0315*A@A)@u
fn("sci_newton_schulz","product",muonpre,(38,67),(38,67))
def sophia(p,m,h,g): m=0.965*m+0.035*g; r=(m.abs()/(0.04*h.clamp(min=0)+1e-15)).clamp(None,1); return p*(1-1e-4)-1e-3*m.sign()*r,(r<1).float().mean()
fn("sci_sophia","reduction",sophia,(111,73),(111,73),(111,73),(111,73))
def ppo(lp,old,adv,v,vo,ret,ent,m):
    adv=(adv-adv.mean())/(adv.std()+1e-8); r=torch.exp((lp-old).clamp(-20,20)); pg=-torch.min(r*adv,r.clamp(0.8,1.2)*adv); vc=vo+(v-vo).clamp(-0.2,0.2); vl=0.5*torch.maximum((v-ret)**2,(vc-ret)**2); n=m.sum().clamp_min(1)
    return ((pg+0.5*vl-0.01*ent)*m).sum()/n,(((r-1)-(lp-old))*m).sum()/n,((r-1).abs()>0.2).float().mean()
fn("sci_ppo","loss",ppo,*[(37,118)]*7,lambda:(torch.rand(37,118)<.8).float(),train=True)
def sac(mu,ls,eps):
    ls=-5+0.5*7*(torch.tanh(ls)+1); s=ls.exp(); u=mu+s*eps; a=torch.tanh(u); lp=(-0.5*eps**2-ls-0.5*math.log(2*math.pi)).sum(-1)-(2*(math.log(2)-u-F.softplus(-2*u))).sum(-1); return a,lp
fn("sci_sac_squashed","reduction",sac,(213,17),(213,17),(213,17),train=True)
def sacq(q1,q2,t1,t2,lp,al,r,d): t=torch.min(t1,t2)-al.exp()*lp; y=(r+0.99*(1-d.float())*t).detach(); return 0.5*F.mse_loss(q1,y)+0.5*F.mse_loss(q2,y),-(al*(lp.detach()-6)).mean(),(q1-y).abs()
fn("sci_sac_critic","loss",sacq,*[(517,1)]*5,(1,),(517,1),rb(.1,517,1),train=True)
def tdl(r,v,nt):
    T=r.shape[1]; g=0.95**torch.arange(T,dtype=r.dtype); d=(r+0.99*nt*v[:,1:]-v[:,:-1])*g; return torch.flip(torch.cumsum(torch.flip(d,[1]),1),[1])/g+v[:,:-1]
fn("sci_td_lambda_revcumsum","scan",tdl,(57,43),(57,44),ru(57,43),train=True)
def gae(r,v,done):
    nd=1-done.float(); dl=r+0.99*v[1:]*nd-v[:-1]; a=torch.zeros_like(r[0]); out=[]
    for t in range(r.shape[0]-1,-1,-1): a=dl[t]+0.99*0.95*nd[t]*a; out.append(a)
    A=torch.stack(out[::-1]); return A,A+v[:-1]
fn("sci_gae_unrolled","pointwise",gae,(7,405),(8,405),rb(.1,7,405))
def c51(p,r,d,lg):
    z=torch.linspace(-10,10,31); dz=20/30; tz=(r[:,None]+0.99*(~d)[:,None]*z).clamp(-10,10); w=(1-(tz[:,:,None]-z).abs()/dz).clamp(0,1); m=(p.softmax(-1)[:,:,None]*w).sum(1).detach(); return -(m*lg.log_softmax(-1)).sum(-1).mean(),(m*z).sum(-1)
fn("sci_c51_projection","loss",c51,(45,31),(45,),rb(.2,45),(45,31),train=True)
def qhub(q,t,tau): u=t[:,None,:]-q[:,:,None]; h=torch.where(u.abs()<=1.0,0.5*u*u,u.abs()-0.5); return ((tau[...,None]-(u.detach()<0).float()).abs()*h).sum(1).mean(1)
fn("sci_quantile_huber","loss",qhub,(51,19),(51,23),ru(51,19),train=True)
def duel(v,a,act,y): q=v+a-a.mean(1,keepdim=True); qa=(q*(torch.arange(a.shape[1])==act[:,None])).sum(1); e=y-qa; pr=(e.abs()+1e-6)**0.6; w=(1/(pr/pr.sum()*y.shape[0]))**0.4; w=(w/w.max()).detach(); return (w*F.smooth_l1_loss(qa,y,reduction="none",beta=2.0)).mean(),pr
fn("sci_dueling_per","loss",duel,(213,1),(213,18),ri(18,213),(213,),train=True)
def iql(q,v,lp): d=q-v; w=torch.where(d>0,0.7,0.3); return (w*d.square()).mean(),-(torch.exp(3.0*d.detach()).clamp(max=100.)*lp).mean()
fn("sci_iql_expectile","loss",iql,(1013,),(1013,),(1013,),train=True)
def dt_ret(r,m): c=torch.flip(torch.cumsum(torch.flip(r*m,(-1,)),-1),(-1,)); return torch.cat([c/1000.0,torch.arange(r.shape[1]).expand_as(c)*m],0)
fn("sci_returns_to_go","scan",dt_ret,(39,133),lambda:(torch.rand(39,133)<.9).float())
def awr(lg,act,mask):
    l=torch.where(mask,lg,torch.full_like(lg,-1e8)); lp=l-l.logsumexp(-1,keepdim=True); p=lp.exp(); H=-(torch.where(mask,p*lp,torch.zeros_like(p))).sum(-1); return lp.gather(1,act[:,None])[:,0],H,F.kl_div(lp,torch.softmax(l/2,-1),reduction="none").sum(-1)
fn("sci_masked_categorical","reduction",awr,(127,41),ri(41,127),rb(.6,127,41),train=True)
def nig(o,y):
    g,nu,al,be=o.unbind(-1); nu=F.softplus(nu)+1e-3; al=F.softplus(al)+1.01; be=F.softplus(be)+1e-3; om=2*be*(1+nu); nll=0.5*torch.log(math.pi/nu)-al*torch.log(om)+(al+0.5)*torch.log(nu*(y-g)**2+om)+torch.lgamma(al)-torch.lgamma(al+0.5); return (nll+0.01*(y-g).abs()*(2*nu+al)).mean(),be/(al-1),be/(nu*(al-1))
fn("sci_evidential_nig","loss",nig,(617,4),(617,),train=True)
def vm(x,mu,k):
    k=F.softplus(k)+0.1; t=k/3.75; t2=t*t; a=1+t2*(3.5156229+t2*(3.0899424+t2*(1.2067492+t2*(0.2659732+t2*(0.0360768+t2*0.0045813))))); u=3.75/k
    b=torch.exp(k)/k.sqrt()*(0.39894228+u*(0.01328592+u*(0.00225319+u*(-0.00157565+u*0.00916281)))); i0=torch.where(k<3.75,a,b); return k*torch.cos(x-mu)-math.log(2*math.pi)-i0.log()
fn("sci_von_mises","pointwise",vm,(83,61),(61,),(83,1),train=True)
def betal(x,a,b): a=F.softplus(a)+0.5; b=F.softplus(b)+0.5; x=x.clamp(1e-4,1-1e-4); return (a-1)*x.log()+(b-1)*torch.log1p(-x)-(torch.lgamma(a)+torch.lgamma(b)-torch.lgamma(a+b)),a/(a+b),a*b/((a+b)**2*(a+b+1))
fn("sci_beta_logpdf","pointwise",betal,ru(67,82),(82,),(67,82))
def stir(x):
    x=F.softplus(x)+0.3; s=torch.log(x*(x+1)*(x+2)*(x+3)*(x+4)); z=x+5; r=1/z; r2=r*r; return (z-0.5)*z.log()-z+0.9189385332+r*(1/12-r2*(1/360-r2*(1/1260)))-s
fn("sci_stirling_lgamma","pointwise",stir,(111,93),train=True)
def digam(x):
    x=x.abs()+0.2; acc=torch.zeros_like(x)
    for _ in range(6): acc=acc-1/x; x=x+1
    r=1/(x*x); return acc+torch.log(x)-0.5/x-r*(1/12-r*(1/120-r*(1/252-r*(1/240-r/132))))
fn("sci_digamma_recur","pointwise",digam,(73,131),train=True)
def studt(x,mu,ls,nu): nu=2+F.softplus(nu); z=(x-mu)*torch.exp(-ls); return -(torch.lgamma((nu+1)/2)-torch.lgamma(nu/2)-0.5*torch.log(nu*math.pi)-ls-(nu+1)/2*torch.log1p(z*z/nu)).sum(-1)
fn("sci_student_t_nll","loss",studt,(95,63),(63,),(95,63),(95,1),train=True)
def zinb(x,mu,th,pi):
    mu=F.softplus(mu)+1e-4; th=th.exp().clamp(1e-3,1e3); x=x.float(); sp=F.softplus(-pi); lt=torch.log(th+1e-8); lm=torch.log(th+mu+1e-8); pt=-pi+th*(lt-lm); z=F.softplus(pt)-sp; nz=-sp+pt+x*(torch.log(mu)-lm)+torch.lgamma(x+th)-torch.lgamma(th)-torch.lgamma(x+1); return torch.where(x<1e-8,z,nz).sum(-1)
fn("sci_zinb","loss",zinb,ri(6,61,97),(61,97),(97,),(61,97),train=True)
def dirkl(a): a=F.relu(a)+1; s=a.sum(-1,keepdim=True); K=a.shape[-1]; return (torch.lgamma(s)-torch.lgamma(a).sum(-1,keepdim=True)-math.lgamma(K)+((a-1)*(torch.digamma(a)-torch.digamma(s))).sum(-1,keepdim=True)).squeeze(-1),K/s
fn("sci_dirichlet_kl","reduction",dirkl,(203,21))
def erfi(x):
    x=x.clamp(-0.999,0.999); w=-torch.log((1-x)*(1+x)); c=[2.81022636e-08,3.43273939e-07,-3.5233877e-06,-4.39150654e-06,0.00021858087,-0.00125372503,-0.00417768164,0.246640727,1.50140941]; d=[-0.000200214257,0.000100950558,0.00134934322,-0.00367342844,0.00573950773,-0.0076224613,0.00943887047,1.00167406,2.83297682]
    a=w-2.5; b=torch.sqrt(w.clamp(min=1e-12))-3; p=torch.full_like(x,c[0]); q=torch.full_like(x,d[0])
    for i in range(1,9): p=c[i]+p*a; q=d[i]+q*b
    return torch.where(w<5,p,q)*x
fn("sci_erfinv_poly","pointwise",erfi,lambda:torch.rand(91,117)*2-1,train=True)
def j0(x):
    a=x.abs()*4; y=a*a; num=57568490574.0+y*(-13362590354.0+y*(651619640.7+y*(-11214424.18+y*(77392.33017+y*(-184.9052456))))); den=57568490411.0+y*(1029532985.0+y*(9494680.718+y*(59272.64853+y*(267.8532712+y)))); z=8/a.clamp_min(1e-3); y2=z*z; xx=a-0.785398164
    p=1+y2*(-0.1098628627e-2+y2*(0.2734510407e-4+y2*-0.2073370639e-5)); q=-0.1562499995e-1+y2*(0.1430488765e-3+y2*(-0.6911147651e-5)); big=torch.sqrt(0.636619772/a.clamp_min(1e-3))*(xx.cos()*p-z*xx.sin()*q); return torch.where(a<8,num/den,big)
fn("sci_bessel_j0","pointwise",j0,(87,101))
fn("sci_phi_functions","pointwise",lambda x:(torch.where(x.abs()<1e-3,1+x/2+x*x/6,torch.expm1(x)/torch.where(x==0,torch.ones_like(x),x)),torch.where(x.abs()<1e-3,1-x*x*math.pi**2/6,torch.sin(math.pi*x)/(math.pi*torch.where(x==0,torch.ones_like(x),x))),torch.where(x>33.3,x,torch.where(x>18,x+torch.exp(-x),torch.log1p(torch.exp(x.clamp(max=18)))))),(67,201))
def hav(a,b): dl=a[:,None]-b[None]; s=torch.sin(dl/2).square(); h=s[...,0]+torch.cos(a[:,None,0])*torch.cos(b[None,:,0])*s[...,1]; d=2*6371.0088*torch.asin(h.clamp(1e-9,1).sqrt()); return d,d.amin(1),torch.exp(-d/1e3).sum(0)
fn("sci_haversine_matrix","reduction",hav,(101,2),(75,2),train=True)
def merc(l): lat,lon=l.unbind(-1); lat=lat.clamp(-1.48,1.48); x=(lon/math.pi+1)/2*256; y=(1-torch.asinh(torch.tan(lat))/math.pi)/2*256; return torch.stack((x,y),-1),(x.floor().int()%16),(y.floor().int()%16)
fn("sci_mercator_tiles","pointwise",merc,(2503,2))
fn("sci_angle_wrap","reduction",lambda a,b,w:(torch.atan2(torch.sin(a-b),torch.cos(a-b)).abs()*w).mean(-1)+((a-b+math.pi)%(2*math.pi)-math.pi).square().amax(-1),(61,150),(61,150),(150,),train=True)
def cmul(a,b,bias):
    ar,ai=a[...,0],a[...,1]; br,bi=b[...,0],b[...,1]; r=ar*br-ai*bi; i=ar*bi+ai*br; m=torch.sqrt(r*r+i*i+1e-9); s=F.relu(m+bias)/m; return torch.stack((r*s,i*s),-1),torch.atan2(i,r+1e-9)
fn("sci_complex_modrelu","pointwise",cmul,(17,73,2),(73,2),(73,),train=True)
def mob(zr,zi,c):
    ar,ai,br,bi,cr,ci,dr,di=c.unbind(0); nr=ar*zr-ai*zi+br; ni=ar*zi+ai*zr+bi; dr2=cr*zr-ci*zi+dr; di2=cr*zi+ci*zr+di; q=dr2*dr2+di2*di2+1e-6; return (nr*dr2+ni*di2)/q,(ni*dr2-nr*di2)/q
fn("sci_mobius_transform","pointwise",mob,(41,87),(41,87),(8,87),train=True)
def mandel(cr,ci):
    zr=torch.zeros_like(cr); zi=torch.zeros_like(ci); n=torch.zeros_like(cr)
    for _ in range(6):
        zr,zi=zr*zr-zi*zi+cr,2*zr*zi+ci; ok=zr*zr+zi*zi<4; n=n+ok; zr=torch.where(ok,zr,torch.full_like(zr,2.)); zi=zi*ok
    return n,torch.log2(torch.log(zr*zr+zi*zi+1.01))
fn("sci_mandelbrot6","pointwise",mandel,(1,93),(78,1))
fn("sci_rope_complex_pairs","pointwise",lambda q,th:torch.stack((q[...,0::2]*th.cos()-q[...,1::2]*th.sin(),q[...,0::2]*th.sin()+q[...,1::2]*th.cos()),-1).flatten(-2),(3,5,43,26),(43,13),train=True)
def cr(p,t): a,b,c,d=p[:,:-3],p[:,1:-2],p[:,2:-1],p[:,3:]; t=t[:,None]; e=lambda x:x.unsqueeze(2); return 0.5*(2*e(b)+(e(c)-e(a))*t+(2*e(a)-5*e(b)+4*e(c)-e(d))*t**2+(3*e(b)-e(a)-3*e(c)+e(d))*t**3)
fn("sci_catmull_rom","pointwise",cr,(7,25,3),ru(11),train=True)
def herm(y0,y1,m0,m1,t): t2=t*t; t3=t2*t; y=(2*t3-3*t2+1)*y0+(t3-2*t2+t)*m0+(-2*t3+3*t2)*y1+(t3-t2)*m1; dy=6*(t2-t)*(y0-y1)+(3*t2-4*t+1)*m0+(3*t2-2*t)*m1; return y,dy,(1+dy**2).sqrt().mean(-1)
fn("sci_hermite_arc","reduction",herm,(61,1),(61,1),(61,1),(61,1),ru(61,133),train=True)
def bic(x,w):
    a=-0.75; d=(w[...,None]+torch.tensor([1.,0.,-1.,-2.])).abs(); k=torch.where(d<=1,(a+2)*d**3-(a+3)*d**2+1,torch.where(d<2,a*d**3-5*a*d**2+8*a*d-4*a,torch.zeros_like(d))); return (x.unfold(-1,4,1)*k).sum(-1)
fn("sci_bicubic_weights","reduction",bic,(19,124),ru(19,121),train=True)
def horner(x,c): 
    y=c[0]
    for i in range(1,c.shape[0]): y=y*x+c[i]
    return y/(1+(c[-1]*x).abs())
fn("sci_horner_rational","pointwise",horner,(71,113),(8,113),train=True)
def cheb(x,c):
    x=torch.tanh(x); T=[torch.ones_like(x),x]
    for _ in range(5): T.append(2*x*T[-1]-T[-2])
    return torch.einsum("bik,iok->bo",torch.stack(T,-1),c)
fn("sci_chebykan","product",cheb,(83,26),(26,19,7),train=True)
def legen(x):
    a,b=torch.ones_like(x),x; o=[a,b]
    for n in range(1,6): a,b=b,((2*n+1)*x*b-n*a)/(n+1); o.append(b)
    return torch.stack(o,1)
fn("sci_legendre","pointwise",legen,lambda:torch.rand(23,151)*2-1)
def bspl(x,w):
    g=torch.linspace(-2.2,2.2,12); x=x[...,None]; b=((x>=g[:-1])&(x<g[1:])).float()
    for k in range(1,4): b=(x-g[:-(k+1)])/(g[k:-1]-g[:-(k+1)])*b[...,:-1]+(g[k+1:]-x)/(g[k+1:]-g[1:-k])*b[...,1:]
    return (b*w).sum(-1)+F.silu(x[...,0])
fn("sci_bspline_kan","reduction",bspl,(57,33),(33,8),train=True)
def datef(t,v):
    h=(t%24).float(); d=((t//24)%7).float(); y=((t//24)%365).float(); tw=2*math.pi; return torch.stack([torch.sin(tw*h/24),torch.cos(tw*h/24),torch.sin(tw*d/7),torch.cos(tw*d/7),torch.sin(tw*y/365.25),torch.cos(tw*y/365.25),((d>=5)&(h>8)).float(),v*torch.exp(-h/12)],-1)
fn("sci_date_features","pointwise",datef,ri(20000,37,71),(37,71),train=True)
fn("sci_onehot_arange_emb","product",lambda i,w,b:((i[...,None]==torch.arange(23)).float()@w+b)*(i>0)[...,None],ri(23,13,57),(23,30),(30,),train=True)
def buck(x,e,w): k=(x[...,None]>e.cumsum(0)).sum(-1); return w[k]+0.1*x,k,(k==0).float().mean(0)
fn("sci_bucketise","reduction",buck,(203,41),ru(9),(10,))
def fhash(i,v):
    h=torch.remainder(i*40503+12345,65536); b=torch.remainder(h,37); s=1-2*torch.remainder(torch.div(h,256,rounding_mode="floor"),2); return ((b[...,None]==torch.arange(37))*(s*v)[...,None]).sum(1)
fn("sci_feature_hashing","reduction",fhash,ri(9999,57,19),(57,19),train=False)
class DS(nn.Module):
    def __init__(s): super().__init__(); s.a=nn.Linear(3,30); s.b=nn.Linear(30,30); s.c=nn.Linear(60,10)
    def forward(s,x,m):
        h=F.elu(s.b(F.elu(s.a(x))))*m[...,None]; n=m.sum(1,keepdim=True).clamp_min(1.); mu=h.sum(1)/n; mx=h.masked_fill(m[...,None]==0,-1e9).amax(1); return s.c(torch.cat((mu,mx),1))
add("sci_deepsets","block",lambda:(DS(),(R(11,43,3,requires_grad=True),(torch.rand(11,43)<.8).float())),True)
class PN(nn.Module):
    def __init__(s): super().__init__(); s.c1=nn.Conv1d(3,22,1); s.b1=nn.BatchNorm1d(22); s.c2=nn.Conv1d(22,38,1); s.b2=nn.BatchNorm1d(38)
    def forward(s,x):
        h=F.relu(s.b1(s.c1(x))); g=s.b2(s.c2(h)).max(-1)[0]; return torch.cat([h,g[:,:,None].expand(-1,-1,x.shape[-1])],1)
add("sci_pointnet","block",lambda:(PN(),(R(5,3,117,requires_grad=True),)),True)
fn("sci_chamfer","reduction",lambda a,b:(lambda d:d.amin(2).mean(1)+d.amin(1).mean(1)+0.1*torch.exp(-d/0.5).mean((1,2)))((a*a).sum(-1)[:,:,None]+(b*b).sum(-1)[:,None]-2*a@b.mT),(4,71,3),(4,58,3),train=True)
def squash(s,dim=-1): n2=(s*s).sum(dim,keepdim=True); return n2/(1+n2)*s*torch.rsqrt(n2+1e-8)
def route(u):
    b=torch.zeros(u.shape[:3]); 
    for k in range(2):
        c=F.softmax(b,2); v=squash((c[...,None]*u).sum(1)); b=b+(u*v[:,None]).sum(-1)
    return v,v.norm(dim=-1)
fn("sci_capsule_routing","block",route,(7,33,10,14),train=True)
def margin(v,y): n=torch.sqrt((v**2).sum(-1)+1e-9); t=(y[:,None]==torch.arange(v.shape[1])).float(); return (t*F.relu(0.9-n)**2+0.5*(1-t)*F.relu(n-0.1).pow(2)).sum(1).mean()
fn("sci_capsule_margin","loss",margin,(73,11,15),ri(11,73),train=True)
def lif(v,i,x,th):
    o=[]
    for t in range(5):
        i=0.8*i+x[t]; v=0.9*v+0.1*i; s=torch.sigmoid(10*(v-th)); h=(v>th).float(); s=h+s-s.detach(); v=v*(1-h)-0.05*h; o.append(s)
    return torch.stack(o).mean(0),v
fn("sci_lif_surrogate","pointwise",lif,(43,55),(43,55),(5,43,55),(55,),train=True)
def izh(v,u,I):
    v=v*10-65; v1=v+0.5*(0.04*v*v+5*v+140-u+I); v1=v1+0.5*(0.04*v1*v1+5*v1+140-u+I); u1=u+0.02*(0.2*v1-u); f=v1>=30; return torch.where(f,torch.full_like(v1,-65.0),v1),torch.where(f,u1+8,u1),f
fn("sci_izhikevich","pointwise",izh,(91,77),(91,77),(77,))
def adex(v,w,x): e=torch.exp(((v-0.5)/0.2).clamp(max=5)); dv=-(v)+0.2*e-w+x; vn=v+0.1*dv; wn=w+0.02*(0.5*v-w); sp=(vn>1.).to(v.dtype); return vn-sp*vn,wn+0.1*sp,sp.mean(1)
fn("sci_adex_bf16","reduction",adex,rh(65,98),rh(65,98),rh(65,98))
def ltc(x,h,wi,wr,b,tau,A): f=torch.sigmoid(x@wi+h@wr+b); t=F.softplus(tau)+0.1; return (h+0.1*f*A)/(1+0.1*(1/t+f)),f.mean(0)
fn("sci_liquid_time_constant","block",ltc,(51,22),(51,34),(22,34),(34,34),(34,),(34,),(34,),train=True)
class CfC(nn.Module):
    def __init__(s): super().__init__(); s.bb=nn.Linear(40,30); s.f=nn.Linear(30,26); s.g=nn.Linear(30,26); s.a=nn.Linear(30,26); s.b=nn.Linear(30,26)
    def forward(s,x,h,ts):
        z=1.7159*torch.tanh(0.666*s.bb(torch.cat([x,h],1))); t=torch.sigmoid(s.a(z)*ts+s.b(z)); return torch.tanh(s.f(z))*(1-t)+t*torch.tanh(s.g(z))
add("sci_cfc_cell","block",lambda:(CfC(),(R(47,14,requires_grad=True),R(47,26,requires_grad=True),torch.rand(47,1,requires_grad=True))),True)
def energy(x,m): e=torch.cumsum((x*m).square(),-1); t=e[...,-1:]; f=e/(t+1e-9); return f,(f<0.95).sum(-1),10*torch.log10(1-f+1e-6)
fn("sci_cumulative_energy","scan",energy,(31,205),(205,),train=False)
def schroe(re,im,V):
    lap=lambda f:F.pad(f,(1,1),mode="circular")
    H=lambda f:-0.5*(lap(f)[...,2:]+lap(f)[...,:-2]-2*f)/0.04+V*f
    r=re+0.005*H(im); i=im-0.01*H(r); r=r+0.005*H(i); n=(r*r+i*i).sum(-1,keepdim=True)*0.2; s=torch.rsqrt(n); return r*s,i*s,(r*H(r)+i*H(i)).sum(-1)/n[...,0]
fn("sci_schroedinger_visscher","reduction",schroe,(19,213),(19,213),(213,),train=True)
def maxw(ez,hx,hy,sg):
    hx=hx-0.5*(ez[:,1:]-ez[:,:-1]); hy=hy+0.5*(ez[1:]-ez[:-1]); c=F.pad(hy,(0,0,0,1))-F.pad(hy,(0,0,1,0))-F.pad(hx,(0,1))+F.pad(hx,(1,0)); a=(1-sg)/(1+sg); return a*ez+0.5/(1+sg)*c,hx,hy
fn("sci_fdtd_tm","pointwise",maxw,(74,91),(74,90),(73,91),ru(74,91),train=True)
def cahn(c):
    l=lambda f:(lambda p:p[:,2:,1:-1]+p[:,:-2,1:-1]+p[:,1:-1,2:]+p[:,1:-1,:-2]-4*f)(F.pad(f,(1,1,1,1),mode="circular")); mu=c**3-c-0.5*l(c); cn=c+0.01*l(mu); gx=torch.roll(cn,-1,2)-cn; gy=torch.roll(cn,-1,1)-cn; return cn,(0.25*(cn**2-1)**2+0.25*(gx**2+gy**2)).mean((1,2))
fn("sci_cahn_hilliard","reduction",cahn,(3,51,62),train=True)
def ksolve(u):
    r=lambda k:torch.roll(u,k,-1); ux=(r(-1)-r(1))/2; uxx=r(-1)-2*u+r(1); uxxxx=r(-2)-4*r(-1)+6*u-4*r(1)+r(2); return u-0.01*(u*ux+uxx+uxxxx)
fn("sci_kuramoto_sivashinsky","pointwise",ksolve,(67,190))
def weno(f):
    a,b,c,d,e=f[:,:-4],f[:,1:-3],f[:,2:-2],f[:,3:-1],f[:,4:]
    b0=13/12*(a-2*b+c)**2+0.25*(a-4*b+3*c)**2; b1=13/12*(b-2*c+d)**2+0.25*(b-d)**2; b2=13/12*(c-2*d+e)**2+0.25*(3*c-4*d+e)**2
    w0=0.1/(1e-6+b0)**2; w1=0.6/(1e-6+b1)**2; w2=0.3/(1e-6+b2)**2; s=w0+w1+w2
    return (w0*(2*a-7*b+11*c)+w1*(-b+5*c+2*d)+w2*(2*c+5*d-e))/(6*s)
fn("sci_weno5","pointwise",weno,(41,203),train=True)
def eulr(r,m,E):
    g=1.4; r=r.exp(); E=F.softplus(E)+0.5*m*m/r; u=m/r; p=((g-1)*(E-0.5*r*u*u)).clamp_min(1e-5); c=torch.sqrt(g*p/r); s=u.abs()+c
    def fl(q,f): a=torch.maximum(s[:,:-1],s[:,1:]); return 0.5*(f[:,:-1]+f[:,1:])-0.5*a*(q[:,1:]-q[:,:-1])
    F1,F2,F3=fl(r,m),fl(m,m*u+p),fl(E,u*(E+p)); k=0.2; up=lambda q,f:q[:,1:-1]-k*(f[:,1:]-f[:,:-1]); return up(r,F1),up(m,F2),up(E,F3),s.amax(1)
fn("sci_euler_rusanov","reduction",eulr,(29,151),(29,151),(29,151),train=True)
def hll(l,r):
    g=9.81; hl,ql=l.unbind(-1); hr,qr=r.unbind(-1); hl=hl.abs()+0.1; hr=hr.abs()+0.1; ul,ur=ql/hl,qr/hr; cl,cr_=(g*hl).sqrt(),(g*hr).sqrt(); sl=torch.minimum(ul-cl,ur-cr_); sr=torch.maximum(ul+cl,ur+cr_); fl=torch.stack((ql,ql*ul+0.5*g*hl**2),-1); fr=torch.stack((qr,qr*ur+0.5*g*hr**2),-1); sl,sr=sl[...,None],sr[...,None]; fm=(sr*fl-sl*fr+sl*sr*(r-l))/(sr-sl); return torch.where(sl>=0,fl,torch.where(sr<=0,fr,fm))
fn("sci_hll_flux","pointwise",hll,(57,103,2),(57,103,2),train=True)
def strain(u):
    g=torch.stack([torch.stack([(torch.roll(u[i],-1,j)-torch.roll(u[i],1,j))*0.5 for j in range(3)]) for i in range(3)]); S=0.5*(g+g.transpose(0,1)); O=0.5*(g-g.transpose(0,1)); q=0.5*((O*O).sum((0,1))-(S*S).sum((0,1))); nu=(0.17*1.0)**2*torch.sqrt(2*(S*S).sum((0,1))); return q,nu
fn("sci_qcriterion_smagorinsky","reduction",strain,(3,15,18,22))
def neoh(Fm):
    a,b,c,d=Fm[...,0,0],Fm[...,0,1],Fm[...,1,0],Fm[...,1,1]; J=(a*d-b*c).abs()+0.1; I1=a*a+b*b+c*c+d*d; lj=J.log(); psi=0.5*0.8*(I1-2)-0.8*lj+0.5*1.3*lj**2; iT=torch.stack([torch.stack([d,-c],-1),torch.stack([-b,a],-1)],-2)/J[...,None,None]; return psi,0.8*(Fm-iT)+1.3*lj[...,None,None]*iT
fn("sci_neo_hookean","pointwise",neoh,(35,41,2,2),train=True)
def sph(x,v,m):
    d=x[:,None]-x[None]; r=torch.sqrt((d*d).sum(-1)+1e-9); q=r/0.5; w=torch.where(q<1,1-1.5*q**2+0.75*q**3,torch.where(q<2,0.25*(2-q)**3,torch.zeros_like(q)))*(10/(7*math.pi*0.25)); rho=(w*m).sum(1); p=((rho/1.2).pow(7)-1).clamp(min=0)*0.1; gw=torch.where(q<1,-3*q+2.25*q*q,torch.where(q<2,-0.75*(2-q)**2,torch.zeros_like(q)))/0.5; f=-m*(p/rho**2)[None]*gw-m*(p/rho**2)[:,None]*gw; return rho,p,(f[...,None]*d/r[...,None]).sum(1)+0.1*(w[...,None]*(v[None]-v[:,None])).sum(1)
fn("sci_sph_density_force","reduction",sph,(61,2),(61,2),ru(61))
def boids(x,v): d=x[:,None]-x[:,:,None]; r=d.norm(dim=-1); n=(r<1.5)&(r>0); nf=n.float()[...,None]; c=nf.sum(2).clamp_min(1); coh=(nf*d).sum(2)/c; ali=(nf*v[:,None]).sum(2)/c-v; sep=-(torch.where((r<0.4)&n,1.0,0.0)[...,None]*d/(r[...,None]**2+1e-3)).sum(2); vn=v+0.01*coh+0.05*ali+0.1*sep; s=vn.norm(dim=-1,keepdim=True); return x+0.1*vn,vn/s.clamp_min(1e-6)*s.clamp(0.2,2.0)
fn("sci_boids","reduction",boids,(3,47,2),(3,47,2))
def kura(th,w,K): d=th[:,None,:]-th[:,:,None]; dt=w+K*torch.sin(d).mean(-1); t=th+0.05*dt; return t,torch.sqrt(t.cos().mean(-1)**2+t.sin().mean(-1)**2)
fn("sci_kuramoto","reduction",kura,(9,73),(73,),(1,),train=True)
def ising(s,h): s=torch.where(s,1.0,-1.0); n=torch.roll(s,1,1)+torch.roll(s,-1,1)+torch.roll(s,1,2)+torch.roll(s,-1,2); dE=2*s*(n+h); return torch.exp(-(0.44*dE).clamp(min=0)),-0.5*(s*n).sum((1,2))-(h*s).sum((1,2)),s.mean((1,2)).abs()
fn("sci_ising_energy","reduction",ising,rb(.5,5,43,57),(43,57))
def hubb(n,mu): u=n.clamp(1e-4,1-1e-4); S=-(u*u.log()+(1-u)*torch.log1p(-u)); f=1/(torch.exp((n-mu)/0.3)+1); b=1/(torch.expm1(n.abs()/0.3+0.05)); return S.sum(1),f,b,(f*(1-f)/0.3).sum(1)
fn("sci_fermi_bose_entropy","reduction",hubb,ru(71,133),(71,1),train=True)
def planck(l,T): l=l*2+0.2; T=T*4000+2000; x=14387.77/(l*T); B=1.191e8/(l**5*(torch.expm1(x.clamp(max=60)))); B=B/B.amax(-1,keepdim=True); return B,torch.trapezoid(B,dx=0.01,dim=-1)
fn("sci_planck","reduction",planck,ru(161),ru(57,1))
def kepler(M,e):
    e=0.8*e; E=M+e*torch.sin(M)
    for _ in range(4): E=E-(E-e*torch.sin(E)-M)/(1-e*torch.cos(E))
    nu=2*torch.atan2(torch.sqrt(1+e)*torch.sin(E/2),torch.sqrt(1-e)*torch.cos(E/2)); r=1-e*torch.cos(E); return nu,r,torch.stack((r*nu.cos(),r*nu.sin()),-1)
fn("sci_kepler_newton","pointwise",kepler,(49,111),ru(111),train=True)
def vdp(x,v,mu):
    f=lambda x,v:(v,mu*(1-x*x)*v-x); h=0.05; a=f(x,v); b=f(x+h*a[0]/3,v+h*a[1]/3); c=f(x+h*(-a[0]/3+b[0]),v+h*(-a[1]/3+b[1])); d=f(x+h*(a[0]-b[0]+c[0]),v+h*(a[1]-b[1]+c[1])); return x+h*(a[0]+3*b[0]+3*c[0]+d[0])/8,v+h*(a[1]+3*b[1]+3*c[1]+d[1])/8
fn("sci_vanderpol_rk38","pointwise",vdp,(59,94),(59,94),ru(94),train=True)
def heun_heston(S,v,z1,z2):
    vp=v.clamp(min=0); zc=-0.7*z1+math.sqrt(1-0.49)*z2; dt=1/52; Sn=S*torch.exp((0.02-0.5*vp)*dt+torch.sqrt(vp*dt+1e-12)*z1); vn=v+2.0*(0.04-vp)*dt+0.3*torch.sqrt(vp*dt+1e-12)*zc; return Sn,vn,F.relu(Sn-1).mean(1),F.relu(1-Sn).mean(1)
fn("sci_heston_step","reduction",heun_heston,ru(33,171),ru(33,171),(33,171),(33,171),train=True)
def rocket(p,v,m): r=p.norm(dim=-1,keepdim=True)+1; g=-1/r**3*p; rho=torch.exp(-(r-1)*8); sp=v.norm(dim=-1,keepdim=True); drag=-0.5*rho*0.3*sp*v/(m.exp()+0.1); th=0.2*v/(sp+1e-6)/(m.exp()+0.1); a=g+drag+th; v2=v+0.01*a; return p+0.005*(v+v2),v2,m-0.001
fn("sci_rocket_drag","reduction",rocket,(407,3),(407,3),(407,1),train=True)
def ekf(s,u): x,y,th,v=s.unbind(-1); a,w=u.unbind(-1); t2=th+0.1*w; big=w.abs()>1e-3; ws=torch.where(big,w,torch.ones_like(w)); nx=torch.where(big,x+v/ws*(t2.sin()-th.sin()),x+v*th.cos()*0.1); ny=torch.where(big,y-v/ws*(t2.cos()-th.cos()),y+v*th.sin()*0.1); return torch.stack([nx,ny,torch.remainder(t2+math.pi,2*math.pi)-math.pi,v+0.1*a],-1)
fn("sci_ctrv_motion","pointwise",ekf,(1007,4),(1007,2),train=True)
def madg(q,g,a):
    w,x,y,z=q.unbind(-1); a=F.normalize(a,dim=-1); ax,ay,az=a.unbind(-1); f1=2*(x*z-w*y)-ax; f2=2*(w*x+y*z)-ay; f3=2*(0.5-x*x-y*y)-az
    s=torch.stack([-2*y*f1+2*x*f2,2*z*f1+2*w*f2-4*x*f3,-2*w*f1+2*z*f2-4*y*f3,2*x*f1+2*y*f2],-1); s=s/(s.norm(dim=-1,keepdim=True)+1e-9); gx,gy,gz=g.unbind(-1)
    d=0.5*torch.stack([-x*gx-y*gy-z*gz,w*gx+y*gz-z*gy,w*gy-x*gz+z*gx,w*gz+x*gy-y*gx],-1)-0.1*s; return F.normalize(q+0.01*d,dim=-1)
fn("sci_madgwick_imu","reduction",madg,(701,4),(701,3),(701,3),train=True)
def giou(a,b):
    lt=torch.max(a[:,None,:2],b[None,:,:2]); rb_=torch.min(a[:,None,2:],b[None,:,2:]); wh=(rb_-lt).clamp(min=0); i=wh[...,0]*wh[...,1]; A=((a[:,2]-a[:,0])*(a[:,3]-a[:,1])).abs(); B=((b[:,2]-b[:,0])*(b[:,3]-b[:,1])).abs(); u=A[:,None]+B-i+1e-7; c=(torch.max(a[:,None,2:],b[...,2:])-torch.min(a[:,None,:2],b[...,:2])).clamp(min=0).prod(-1)+1e-7; return i/u-(c-u)/c
fn("sci_giou_matrix","reduction",giou,(63,4),(51,4),train=True)
def ciou(p,t):
    px,py,pw,ph=p.unbind(-1); tx,ty,tw,th=t.unbind(-1); pw,ph,tw,th=pw.exp(),ph.exp(),tw.exp(),th.exp(); iw=(torch.minimum(px+pw/2,tx+tw/2)-torch.maximum(px-pw/2,tx-tw/2)).clamp(0); ih=(torch.minimum(py+ph/2,ty+th/2)-torch.maximum(py-ph/2,ty-th/2)).clamp(0); i=iw*ih; u=pw*ph+tw*th-i+1e-7; iou=i/u; cw=torch.maximum(px+pw/2,tx+tw/2)-torch.minimum(px-pw/2,tx-tw/2); ch=torch.maximum(py+ph/2,ty+th/2)-torch.minimum(py-ph/2,ty-th/2); c2=cw**2+ch**2+1e-7; rho=(px-tx)**2+(py-ty)**2; v=4/math.pi**2*(torch.atan(tw/th)-torch.atan(pw/ph))**2; al=(v/(v-iou+(1+1e-7))).detach(); return (1-(iou-(rho/c2+v*al))).mean(),iou
fn("sci_ciou_loss","loss",ciou,(803,4),(803,4),train=True)
def ssim(a,b):
    f=lambda t:F.avg_pool2d(t,5,1); ma,mb=f(a),f(b); va=f(a*a)-ma*ma; vb=f(b*b)-mb*mb; c=f(a*b)-ma*mb; s=((2*ma*mb+1e-4)*(2*c+9e-4))/((ma**2+mb**2+1e-4)*(va+vb+9e-4)); return torch.clamp((1-s)/2,0,1).mean((1,2,3))
fn("sci_ssim_loss","pool",ssim,ru(2,3,38,45),ru(2,3,38,45),train=True)
def tv(x,g): dx=x[...,1:]-x[...,:-1]; dy=x[...,1:,:]-x[...,:-1,:]; gx=(g[...,1:]-g[...,:-1]).abs().mean(1,keepdim=True); gy=(g[...,1:,:]-g[...,:-1,:]).abs().mean(1,True); return (dx.abs()*torch.exp(-10*gx)).mean()+(dy.abs()*torch.exp(-10*gy)).mean()+(dx[...,:-1,:].square()+dy[...,:-1].square()+1e-6).sqrt().mean()
fn("sci_edge_aware_tv","reduction",tv,(3,1,49,62),(3,3,49,62),train=True)
def census(x):
    p=F.pad(x,(1,1,1,1),mode="replicate"); H,W=x.shape[-2:]; c=0
    for k,(i,j) in enumerate([(0,0),(0,1),(0,2),(1,0),(1,2),(2,0),(2,1),(2,2)]): c=c+(p[:,i:i+H,j:j+W]>x).int()*(1<<k)
    return c
fn("sci_lbp_census","pointwise",census,(4,58,75))
def bilat(x):
    p=F.pad(x[:,None],(2,2,2,2),mode="reflect")[:,0]; H,W=x.shape[-2:]; n=0;d=0
    for i in (0,2,4):
        for j in (0,2,4): q=p[:,i:i+H,j:j+W]; w=torch.exp(-((i-2)**2+(j-2)**2)/8-(q-x)**2/0.18); n=n+w*q; d=d+w
    return n/d
fn("sci_bilateral_filter","pointwise",bilat,(3,42,57),train=True)
def pm(x):
    c=lambda d:d/(1+(d/0.3)**2); n=F.pad(x[:,:-1]-x[:,1:],(0,0,1,0)); s=F.pad(x[:,1:]-x[:,:-1],(0,0,0,1)); e=F.pad(x[:,:,1:]-x[:,:,:-1],(0,1)); w=F.pad(x[:,:,:-1]-x[:,:,1:],(1,0)); return x+0.2*(c(n)+c(s)+c(e)+c(w))
fn("sci_perona_malik","pointwise",pm,(3,61,82),train=True)
def half(name,label,f,*shapes,dt=torch.bfloat16,train=True):
    add(name,label,lambda:(Of(f),tuple((torch.randn(*s)*0.7).to(dt).requires_grad_(train) for s in shapes)),train)
def tr(*s): return lambda: torch.randn(*s).transpose(-1,-2)
def sl(n,*s): return lambda: torch.randn(*s)[...,n:-n]
half("sci_heat_var_coef_bf16","pointwise",lambda u,k:u+0.1*(F.pad(k[1:]*(u[:,1:]-u[:,:-1]),(0,1))-F.pad(k[1:]*(u[:,1:]-u[:,:-1]),(1,0)))-0.01*u**3,(57,182),(182,))
half("sci_quat_mul_f16","pointwise",lambda a,b:torch.cat([a[...,:1]*b[...,:1]-(a[...,1:]*b[...,1:]).sum(-1,True),a[...,:1]*b[...,1:]+b[...,:1]*a[...,1:]+torch.cross(a[...,1:],b[...,1:],dim=-1)],-1),(501,4),(501,4),dt=torch.float16)
half("sci_aces_fit_bf16","pointwise",lambda x:torch.clamp((x.relu()*(2.51*x.relu()+.03))/(x.relu()*(2.43*x.relu()+.59)+.14),0,1).float().clamp_min(1e-6).pow(0.4545).to(x.dtype),(2,3,45,70))
half("sci_nerf_enc_f16","pointwise",lambda x:torch.cat([x]+[g(x*(2.0**k)) for k in range(5) for g in (torch.sin,torch.cos)],-1),(701,3),dt=torch.float16,train=False)
half("sci_vol_render_bf16","scan",lambda s,c:((lambda a:(lambda w:(w[...,None]*c.sigmoid()).sum(1))(a*torch.cumprod(torch.cat([torch.ones_like(a[:,:1]),1-a[:,:-1]],1),1)))(1-torch.exp(-F.softplus(s.float())*0.1))).bfloat16(),(63,42),(63,42,3))
half("sci_layernormed_message_f16","block",lambda h,a,g:F.layer_norm(h+torch.softmax(a,-1)@h,(26,))*g+h,(3,33,26),(3,33,33),(26,),dt=torch.float16)
half("sci_two_tower_bf16","product",lambda u,i:F.log_softmax((F.normalize(u,dim=-1)@F.normalize(i,dim=-1).mT)*14.3,-1),(62,34),(78,34))
half("sci_pde_burgers_f16","pointwise",lambda u:u-0.05*torch.where(u>0,u*(u-torch.roll(u,1,-1)),u*(torch.roll(u,-1,-1)-u))+0.02*(torch.roll(u,1,-1)+torch.roll(u,-1,-1)-2*u),(45,166),dt=torch.float16)
half("sci_gated_ssm_step_bf16","pointwise",lambda x,dt_,A,B,C,h:((torch.exp(F.softplus(dt_)[...,None]*-A.exp())*h+(F.softplus(dt_)*x)[...,None]*B[:,None])*C[:,None]).sum(-1)+0.5*x,(17,58),(17,58),(58,14),(17,14),(17,14),(17,58,14))
half("sci_ppo_ratio_bf16","loss",lambda a,b,c:-torch.minimum(torch.exp(a-b)*c,torch.exp(a-b).clamp(0.8,1.28)*c).float().mean()+0.001*(torch.exp(b-a)-(b-a)-1).mean(),(67,150),(67,150),(67,150))
half("sci_fm_deepfm_f16","block",lambda v,w,l:torch.sigmoid(w.sum(1)+0.5*(v.sum(1)**2-(v**2).sum(1)).sum(1)+(F.relu(v.flatten(1)@l)).mean(1)),(51,9,14),(51,9),(126,38),dt=torch.float16)
half("sci_yuv_chroma_bf16","pointwise",lambda x:torch.cat([0.299*x[:,:1]+0.587*x[:,1:2]+0.114*x[:,2:],F.avg_pool2d(0.564*(x[:,2:]-x[:,:1]),2).repeat_interleave(2,-1).repeat_interleave(2,-2)],1),(3,3,46,58))
fn("sci_transposed_wave","reduction",lambda u,v:((2*u-v+0.3*(torch.roll(u,1,-2)-2*u+torch.roll(u,-1,-2))),(u-v).square().sum(-2)),tr(5,61,74),tr(5,61,74))
fn("sci_slice_upwind","pointwise",lambda u,w:u-0.2*torch.where(w>0,w*(u-u.roll(1,-1)),w*(u.roll(-1,-1)-u))-1e-2*u.abs()*u,sl(3,39,133),sl(3,39,133))
fn("sci_transposed_softmax_force","reduction",lambda d,q:torch.softmax(-d.square()/0.7,-1)*q.tanh()/(1+d.abs()),tr(3,51,66),tr(51,66))
def nose(x,v,xi,m):
    f=lambda x:-4*x*(x*x-1)-0.2*torch.sin(3*x); K=0.5*(m*v*v).sum(-1,keepdim=True); N=x.shape[-1]; xi1=xi+0.005*(2*K-0.7*N)/5.0; v1=v*torch.exp(-xi1*0.005); v2=v1+0.005*f(x)/m; x1=x+0.01*v2; v3=v2+0.005*f(x1)/m; v4=v3*torch.exp(-xi1*0.005); K2=0.5*(m*v4*v4).sum(-1,keepdim=True); xi2=xi1+0.005*(2*K2-0.7*N)/5; return x1,v4,xi2,K2[...,0]+((x1*x1-1)**2).sum(-1)
fn("sci_nose_hoover","reduction",nose,(71,105),(71,105),(71,1),lambda:torch.rand(105)+.5,train=True)
def henon(x,y,px,py):
    h=0.05
    for c,d in ((0.6756035959798289,1.3512071919596578),(-0.17560359597982877,-1.7024143839193153),(-0.17560359597982877,1.3512071919596578),(0.6756035959798289,0)):
        x=x+c*h*px; y=y+c*h*py; fx=-x-2*x*y; fy=-y-x*x+y*y; px=px+d*h*fx; py=py+d*h*fy
    return x,y,px,py,0.5*(px**2+py**2+x**2+y**2)+x*x*y-y**3/3
fn("sci_henon_heiles_yoshida4","pointwise",henon,(47,81),(47,81),(47,81),(47,81),train=True)
def atmos(T,q,p):
    T=T*15+288; p=p*4e4+6e4; q=q*0.02; Tc=T-273.15; es=611.2*torch.exp(17.67*Tc/(Tc+243.5)); e=q*p/(0.622+0.378*q); rh_=(e/es).clamp(1e-3,1.2); g=torch.log(rh_)+17.67*Tc/(243.5+Tc); Td=243.5*g/(17.67-g); th=T*(1e5/p)**0.2857; tv=T*(1+0.608*q); the=th*torch.exp(2.5e6*q/(1004*T)); lcl=125*(Tc-Td); return torch.stack([rh_,Td,th,tv,the,lcl]),(the[:,1:]-the[:,:-1]).clamp(max=0).sum(1)
fn("sci_thermo_moist","reduction",atmos,(59,38),ru(59,38),ru(59,38),train=True)
def sky(th,g):
    c=torch.cos(th); z=c.clamp(min=0.01); am=1/(z+0.15*(93.885-torch.acos(z)*57.29578).clamp_min(0.1).pow(-1.253)); ray=torch.tensor([5.8e-3,1.35e-2,3.31e-2]); tr_=torch.exp(-am[...,None]*(ray*8.4+0.021*1.2)); pr=0.05968*(1+c*c); gg=0.76; pm_=0.1193*(1-gg*gg)*(1+c*c)/((2+gg*gg)*(1+gg*gg-2*gg*c).clamp_min(1e-4)**1.5); L=(pr[...,None]*ray*8.4+pm_[...,None]*0.0252)/(ray*8.4+0.0252)*(1-tr_)*20; L=L*g.exp(); L=1-torch.exp(-L); return torch.where(L<0.0031308,12.92*L,1.055*L.clamp_min(1e-7).pow(0.41667)-0.055)
fn("sci_sky_scatter","pointwise",sky,ru(63,77),(3,),train=True)
def disney(n,l,v,bc,r,cl,sh):
    h=F.normalize(l+v,dim=-1); d=lambda a,b:(a*b).sum(-1); nl=d(n,l).abs().clamp(1e-3,1); nv=d(n,v).abs().clamp(1e-3,1); nh=d(n,h).clamp(-1,1); lh=d(l,h).clamp(0,1); sc=lambda x:(1-x).clamp(0,1)**5; fl,fv,fh=sc(nl),sc(nv),sc(lh); fd90=0.5+2*lh*lh*r; fd=torch.lerp(torch.ones_like(fl),fd90,fl)*torch.lerp(torch.ones_like(fv),fd90,fv); fss=lh*lh*r; fs=(1+(fss-1)*fl)*(1+(fss-1)*fv); ss=1.25*(fs*(1/(nl+nv)-0.5)+0.5); a=(r*r).clamp_min(1e-3); D=a*a/(math.pi*((a*a-1)*nh*nh+1)**2); gg=lambda x:1/(x+torch.sqrt(a*a+x*x-a*a*x*x)); sp=gg(nl)*gg(nv)*D; k=0.25*cl*(0.04+0.96*fh)*0.1*gg(nl); return ((0.5*fd+0.5*ss)/math.pi*nl)[...,None]*bc+((sp*(0.04+0.96*fh)+k+sh*fh)*nl)[...,None]
fn("sci_disney_brdf","reduction",disney,(419,3),(419,3),(419,3),ru(419,3),ru(419),ru(419),ru(419),train=True)
def oklab(x):
    r,g,b=x.unbind(1); l=0.4122214708*r+0.5363325363*g+0.0514459929*b; m=0.2119034982*r+0.6806995451*g+0.1073969566*b; s=0.0883024619*r+0.2817188376*g+0.6299787005*b; c=lambda t:t.clamp_min(1e-6)**(1/3); l,m,s=c(l),c(m),c(s); L=0.2104542553*l+0.793617785*m-0.0040720468*s; A=1.9779984951*l-2.428592205*m+0.4505937099*s; B=0.0259040371*l+0.7827717662*m-0.808675766*s; C=torch.sqrt(A*A+B*B+1e-9); h=torch.atan2(B,A)+0.3; A,B=1.2*C*h.cos(),1.2*C*h.sin(); l=(L+0.3963377774*A+0.2158037573*B)**3; m=(L-0.1055613458*A-0.0638541728*B)**3; s=(L-0.0894841775*A-1.291485548*B)**3
    return torch.stack([4.0767416621*l-3.3077115913*m+0.2309699292*s,-1.2684380046*l+2.6097574011*m-0.3413193965*s,-0.0041960863*l-0.7034186147*m+1.707614701*s],1).clamp(0,1)
fn("sci_oklab_hue_shift","pointwise",oklab,ru(2,3,57,71),train=True)
def blend(a,b,m):
    sl_=torch.where(b<0.5,2*a*b+a*a*(1-2*b),torch.sqrt(a.clamp_min(1e-6))*(2*b-1)+2*a*(1-b)); ov=torch.where(a<0.5,2*a*b,1-2*(1-a)*(1-b)); dg=(a/(1-b).clamp_min(1e-3)).clamp(max=1); bn=1-((1-a)/b.clamp_min(1e-3)).clamp(max=1); vl=torch.where(b<0.5,1-((1-a)/(2*b).clamp_min(1e-3)).clamp(max=1),(a/(2-2*b).clamp_min(1e-3)).clamp(max=1)); ex=a+b-2*a*b; w=m.softmax(0); return sum(w[i]*t for i,t in enumerate((sl_,ov,dg,bn,vl,ex)))
fn("sci_photo_blend_modes","pointwise",blend,ru(3,41,62),ru(3,41,62),(6,1,1,1),train=True)
def fbm(x,y):
    def vn(x,y):
        i,j=x.floor(),y.floor(); f,g=x-i,y-j; u=f*f*(3-2*f); v=g*g*(3-2*g); hs=lambda a,b:torch.frac(torch.sin(a*127.1+b*311.7)*43758.547); return torch.lerp(torch.lerp(hs(i,j),hs(i+1,j),u),torch.lerp(hs(i,j+1),hs(i+1,j+1),u),v)
    return 0.5*vn(x*3,y*3)+0.25*vn(x*6.07,y*6.07)
fn("sci_value_noise_fbm","pointwise",fbm,(51,1),(1,88))
def raym(o,d):
    t=torch.full_like(o[...,:1],0.1)
    for _ in range(5):
        p=o+t*d; q=torch.remainder(p+1,2.0)-1; s=q.norm(dim=-1,keepdim=True)-0.4; pl=p[...,1:2]+1.2; t=t+0.8*torch.minimum(s,pl).clamp(max=2.0)
    return t[...,0],torch.exp(-0.1*t[...,0])
fn("sci_sphere_trace5","reduction",raym,(601,3),lambda:F.normalize(torch.randn(601,3),dim=-1))
def mt(o,d,v0,v1,v2):
    e1,e2=v1-v0,v2-v0; o,d=o[:,None],d[:,None]; p=torch.cross(d.expand(-1,e2.shape[0],-1),e2.expand(d.shape[0],-1,-1),dim=-1); det=(e1*p).sum(-1); ok=det.abs()>1e-8; inv=1/torch.where(ok,det,torch.ones_like(det)); tv_=o-v0; u=(tv_*p).sum(-1)*inv; q=torch.cross(tv_,e1.expand_as(tv_),dim=-1); v=(d*q).sum(-1)*inv; t=(e2*q).sum(-1)*inv; hit=ok&(u>=0)&(v>=0)&(u+v<=1)&(t>1e-5); return torch.where(hit,t,1e9).amin(1),hit.sum(1)
fn("sci_moller_trumbore","reduction",mt,(91,3),(91,3),(35,3),(35,3),(35,3))
def ewa(q,s,J):
    q=F.normalize(q,dim=-1); w,x,y,z=q.unbind(-1); R_=torch.stack([1-2*(y*y+z*z),2*(x*y-w*z),2*(x*z+w*y),2*(x*y+w*z),1-2*(x*x+z*z),2*(y*z-w*x),2*(x*z-w*y),2*(y*z+w*x),1-2*(x*x+y*y)],-1).view(-1,3,3); L=R_*torch.exp(s)[:,None]; S=L@L.mT; C=J@S@J.mT; a,b,c=C[:,0,0]+0.3,C[:,0,1],C[:,1,1]+0.3; det=(a*c-b*b).clamp_min(1e-6); mid=0.5*(a+c); rad=torch.ceil(3*torch.sqrt(mid+torch.sqrt((mid*mid-det).clamp_min(0.1)))); return torch.stack((c/det,-b/det,a/det),-1),rad.int()
fn("sci_ewa_projection","block",ewa,(403,4),(403,3),(403,2,3),train=True)
def mipenc(m,v):
    sc=2.0**torch.arange(6); y=(m[...,None,:]*sc[:,None]).flatten(-2); w=(v[...,None,:]*sc[:,None]**2).flatten(-2).abs(); return torch.cat([torch.exp(-0.5*w)*torch.sin(y),torch.exp(-0.5*w)*torch.sin(y+0.5*math.pi)],-1)
fn("sci_mip_integrated_enc","pointwise",mipenc,(13,37,3),(13,37,3),train=True)
def distl(w,s): m=(s[:,1:]+s[:,:-1])/2; d=s[:,1:]-s[:,:-1]; w=F.softmax(w,-1); return ((w[:,:,None]*w[:,None])*(m[:,:,None]-m[:,None]).abs()).sum((1,2)).mean()+(w*w*d).sum(-1).mean()/3
fn("sci_mip_distortion","loss",distl,(37,31),lambda:torch.rand(37,32).cumsum(1),train=True)
def eik(g,s,t): n=g.norm(dim=-1); return ((n-1)**2).mean()*0.1+F.l1_loss(s.clamp(-0.1,0.1),t.clamp(-0.1,0.1))+torch.exp(-100*s.abs()).mean()*0.05+(1-F.cosine_similarity(g,g.roll(1,0),dim=-1)).mean()
fn("sci_eikonal_sdf_loss","loss",eik,(911,3),(911,),(911,),train=True)
def neus(s,iv,c): inv=torch.exp(iv*10).clamp(1e-6,1e6); mid=(s[:,1:]+s[:,:-1])/2; k=((s[:,1:]-s[:,:-1])/0.1).clamp(-1e3,0); p=torch.sigmoid((mid-k*0.05)*inv); n=torch.sigmoid((mid+k*0.05)*inv); a=((p-n+1e-5)/(p+1e-5)).clamp(0,1); T=torch.cumprod(torch.cat([torch.ones_like(a[:,:1]),1-a+1e-7],1),1)[:,:-1]; return ((a*T)[...,None]*c).sum(1),(a*T).sum(1)
fn("sci_neus_weights","scan",neus,(57,40),lambda:torch.randn(1)*.1,(57,39,3),train=True)
