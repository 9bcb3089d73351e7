"""Lookups, quantised weights, products and what goes around them; half types."""
from written_base import *
BF,HF=torch.bfloat16,torch.float16
def L(i,o,b=True,dt=None): return nn.Linear(i,o,bias=b,dtype=dt)
def E(n,d,dt=None,**k): return nn.Embedding(n,d,dtype=dt,**k)
def PH(dt,*s,scale=0.2): return nn.Parameter((torch.randn(*s)*scale).to(dt))
def B(t): return t.detach()
# --- looked-up data
fn("lk_hash2_sum_ln","product",lambda e1,e2,n,l,i:l(n(e1((i*31+7)%53)*torch.sigmoid(e2((i*17+3)%29))+e1((i*13+5)%53).flip(-1)*0.5)),ri(1000,5,13),layers=lambda:(E(53,22),E(29,22),nn.LayerNorm(22),L(22,37)),train=True)
def _fact(e,p,l,pos,n,i):
    h=e(i)@p.t(); h=h*math.sqrt(p.shape[0])+pos[:i.shape[1]]
    a,b=l(n(h)).chunk(2,-1); return torch.tanh(a)*F.softplus(b)+h, (a*b).mean(-1)
fn("lk_factorised_glu","product",_fact,ri(71,3,17),layers=lambda:(E(71,9),P(30,9),L(30,60),P(25,30),nn.LayerNorm(30)),train=True)
def _padpool(e,l,i):
    m=(i!=0).unsqueeze(-1); h=e(i); c=m.sum(1).clamp(min=1); mean=(h*m).sum(1)/c; mx=h.masked_fill(~m,-1e4).amax(1)
    v=((h-mean[:,None])**2*m).sum(1)/c; return l(torch.cat([mean,mx,(v+1e-6).sqrt()],-1))
fn("lk_pad_stats","product",_padpool,ri(40,7,19),layers=lambda:(E(40,14,padding_idx=0),L(42,23)),train=True)
def _tsin(l1,l2,e,t,c):
    f=torch.exp(-math.log(10000.)*torch.arange(11,device=t.device)/11); a=t[:,None].float()*f
    h=torch.cat([a.cos(),a.sin()],-1); h=l2(F.silu(l1(h)))+e(c); s,b,g=F.silu(h).chunk(3,-1); return s*(1+b),b.tanh()-g,g.sigmoid()*h[:,::3]
fn("lk_time_class_cond","product",_tsin,ri(1000,21),ri(10,21),layers=lambda:(L(22,33),L(33,45),E(10,45)),train=True)
def _cross(e1,e2,e3,l,a,b,x):
    u,v=e1(a),e2(b); c=e3((a*9+b)%37); o=torch.cat([u*v,(u-v).abs(),c,x.log1p()],-1); o=l(o); g,h=o[...,:17],o[...,17:]; return F.relu(g)*torch.sigmoid(h)+c[...,:17]*0.3
fn("lk_crossed_cats","product",_cross,ri(11,50),ri(9,50),ru(50,6),layers=lambda:(E(11,18),E(9,18),E(37,20),L(62,34)),train=True)
def _int8(q,s,z,b,x):
    w=(q.float()-z[:,None])*s[:,None]; y=x@w.t()+b; return F.gelu(y,approximate="tanh")*y.abs().amax(-1,keepdim=True).clamp(min=1e-5).reciprocal()
fn("lk_int8_zp_rowmax","product",_int8,layers=lambda:(torch.randint(-128,127,(45,62),dtype=torch.int8),torch.rand(45)*.01,torch.randn(45)*2,P(45)),*[(37,62)])
def _int4(q,s,z,x,r):
    lo=(q&15).to(x.dtype); hi=(q>>4).to(x.dtype); w=torch.stack([lo,hi],-1).reshape(q.shape[0],-1,16); w=((w-z[...,None])*s[...,None]).reshape(q.shape[0],-1)
    y=F.linear(x,w); a,b=y[...,::2],y[...,1::2]; return F.silu(a)*b+r
def _u4(o,i): return torch.randint(0,256,(o,i//2),dtype=torch.uint8)
fn("lk_int4_group_swiglu","product",_int4,rh(3,11,64),rh(3,11,27),layers=lambda:(_u4(54,64),(torch.rand(54,4)*.05).bfloat16(),torch.randint(6,10,(54,4)).bfloat16()))
def _nf4(tab,q,am,x):
    idx=torch.cat([(q>>4),(q&0x0F)],-1).long(); w=tab[idx]; w=(w.view(w.shape[0],-1,8)*am[...,None]).flatten(1); y=x@w.mT; return y.softmax(-1)*y.max(-1,keepdim=True).values.sigmoid()
fn("lk_nf4_table","product",_nf4,(29,40),layers=lambda:(torch.linspace(-1,1,16).pow(3),_u4(35,40),torch.rand(35,5)))
def _tern(w,b,x):
    s=w.abs().mean().clamp(min=1e-5); wq=(w/s).round().clamp(-1,1)*s; wq=w+(wq-w).detach()
    xs=127/x.abs().amax(-1,keepdim=True).clamp(min=1e-5); xq=x+((x*xs).round().clamp(-128,127)/xs-x).detach(); h=F.linear(xq,wq,b); return F.relu(h)**2
fn("lk_bitlinear_relu2","product",_tern,(6,9,50),layers=lambda:(P(41,50),P(41)),train=True)
def _codebook(cb,idx,sc,x,res):
    w=cb[torch.arange(cb.shape[0],device=x.device)[None],idx].sum(2) if False else torch.stack([cb[j][idx[:,:,j]] for j in range(cb.shape[0])]).sum(0)
    w=w.flatten(1)*sc[:,None]; y=x@w.t(); return y+res.roll(1,0), (y*res).sum(-1)
fn("lk_additive_codebooks","product",_codebook,(23,48),(23,33),layers=lambda:(P(2,32,6),torch.randint(0,32,(33,8,2)),P(33,scale=1.)),train=True)
def _fq(w,lw,la,b,x):
    sa=la.exp(); xq=torch.clamp(x/sa,-8,7); xq=(xq+(xq.round()-xq).detach())*sa; sw=lw.exp()[:,None]; wq=torch.clamp(w/sw,-7.,7.); wq=(wq+(wq.round()-wq).detach())*sw
    y=xq@wq.t()+b; return F.hardswish(y), y.abs().mean()
fn("lk_lsq_fakequant","product",_fq,(31,45),layers=lambda:(P(38,45),nn.Parameter(torch.full((38,),-3.)),nn.Parameter(torch.tensor(-1.5)),P(38)),train=True)
def _ws(w,g,b,x):
    m=w.mean(1,keepdim=True); v=w.var(1,keepdim=True,unbiased=False); k=(w-m)*torch.rsqrt(v*w.shape[1]+1e-4)*g; y=F.linear(F.elu(x)*1.27,k,b); return y*torch.sigmoid(1.5*y)
fn("lk_weight_standard","product",_ws,(5,14,39),layers=lambda:(P(34,39),P(34,1,scale=1.),P(34)),train=True)
def _prune(w,s,t,b,x):
    m=torch.sigmoid((s-t)*10); hard=(s>t).float(); m=hard+m-m.detach(); y=x@(w*m).t()+b; return F.leaky_relu(y,.2)-0.1*y.mean(0), m.sum()/m.numel()
fn("lk_soft_prune_mask","product",_prune,(42,51),layers=lambda:(P(26,51),P(26,51),nn.Parameter(torch.zeros(26,1)),P(26)),train=True)
def _dora(w,a,bb,m,bias,x):
    v=w+2.5*(bb@a); n=v.norm(dim=1,keepdim=True); y=x@(m*v/n).t()+bias; return F.gelu(y)*x.mean(-1,keepdim=True)
fn("lk_dora_gelu","product",_dora,(4,13,44),layers=lambda:(P(57,44),P(5,44),P(57,5),P(57,1,scale=1.),P(57)),train=True)
def _lora3(l,aq,bq,av,bv,x):
    q,k,v=l(x).chunk(3,-1); q=q+(x@aq@bq)*(16/5); v=v+(x@av@bv)*(16/5); g=torch.sigmoid((q*k).sum(-1,keepdim=True)/math.sqrt(q.shape[-1])); return g*v+(1-g)*q.roll(1,1)
fn("lk_lora_qv_gate","product",_lora3,rh(3,15,36),layers=lambda:(L(36,66,dt=BF),PH(BF,36,5),PH(BF,5,22),PH(BF,36,5),PH(BF,5,22)),train=True)
def _butter(ws,d,x):
    b=x.shape[0]; h=x
    for s,w in zip((1,2,4,8,16),ws):
        h=h.view(b,-1,2,s); h=torch.einsum("bgis,gsij->bgjs",h,w.view(h.shape[1],s,2,2)).reshape(b,-1)
    return F.relu(h*d)+x
fn("lk_butterfly5","product",lambda w1,w2,d,x:_butter([w1[0],w1[1],w2[0],w2[1],w2[2]],d,x),(27,32),layers=lambda:(P(2,16,4,scale=.7),P(3,16,4,scale=.7),P(32)),train=True)
def _kron(a,b,c,x):
    h=x.view(x.shape[0],a.shape[1],b.shape[1]); y=torch.einsum("nij,oi,pj->nop",h,a,b)+c; z=y.flatten(1); return z*torch.sigmoid(z), y.amax(2)
fn("lk_kron_swish","product",_kron,(19,63),layers=lambda:(P(5,7),P(11,9),P(5,11)),train=True)
def _circ(c,b,x):
    n=c.shape[0]; i=(torch.arange(n,device=x.device)[:,None]-torch.arange(n,device=x.device))%n; return torch.tanh(x@c[i].t()+b)+x[:,torch.arange(n-1,-1,-1,device=x.device)]*0.25
fn("lk_circulant_idx","product",_circ,(33,45),layers=lambda:(P(45),P(45)),train=True)
def _toep(t,d,x):
    n=x.shape[1]; i=torch.arange(n,device=x.device)[:,None]-torch.arange(n,device=x.device)+n-1; w=t[i].tril(); w=w*torch.exp(-d.abs()*(torch.arange(n,device=x.device)[:,None]-torch.arange(n,device=x.device)).clamp(min=0)); return torch.einsum("st,btd->bsd",w,x)*F.silu(x)
fn("lk_toeplitz_decay","product",_toep,(4,26,19),layers=lambda:(P(51),P(1)),train=True)
def _sym(w,x):
    s=0.5*(w+w.t()); a=w.triu(1); a=a-a.t(); u=x@s; v=x@a; return (u*x).sum(-1),(torch.sin(v)*u+x).pow(2).mean(-1).sqrt()
fn("lk_sym_antisym","product",_sym,(47,38),layers=lambda:(P(38,38),),train=True)
def _antirnn(w,b,l,x,h):
    A=w-w.mT-0.01*torch.eye(w.shape[0],device=x.device)
    for t in range(3): z=h@A.t()+l(x[:,t])+b; h=h+0.1*torch.tanh(z)
    return h
fn("lk_antisymmetric_rnn","product",_antirnn,(13,3,21),(13,34),layers=lambda:(P(34,34),P(34),L(21,34)),train=True)
def _cayley(w,x):
    n=w.shape[0]; a=w-w.t(); I=torch.eye(n,device=x.device); q=I-a
    for _ in range(2): q=I-a@q/2
    return F.softshrink(x@(I-a/2)@q,.1)
fn("lk_cayley_neumann","product",_cayley,(28,23),layers=lambda:(P(23,23,scale=.1),),train=True)
def _tri(w,d,x):
    Lw=torch.tril(w,-1)+torch.diag_embed(F.softplus(d)+1e-3); z=x@Lw.mT; return z,torch.log(F.softplus(d)+1e-3).sum()-0.5*(z**2).sum(-1)
fn("lk_cholesky_flow","product",_tri,(36,29),layers=lambda:(P(29,29),P(29)),train=True)
def _mixp(w1,w2,w3,g,x,y):
    p=g(x+0).softmax(-1); a=x@w1; b=torch.relu(x*y)@w2; c=(x-y).abs()@w3; return p[:,0:1]*a+p[:,1:2]*b+p[:,2:]*c+1/3*(a*b)
fn("lk_three_mix","product",_mixp,(44,31),(44,31),layers=lambda:(P(31,25),P(31,25),P(31,25),L(31,3)),train=True)
# --- losses
def _infonce(t,a,b):
    a=F.normalize(a,dim=-1); b=F.normalize(b,dim=-1); s=a@b.t()*t.exp().clamp(max=100); d=s.diagonal(); return ((s.logsumexp(1)-d).mean()+(s.logsumexp(0)-d).mean())/2, (s.argmax(1)==torch.arange(s.shape[0],device=s.device)).float().mean()
fn("lk_clip_two_way","loss",_infonce,(43,27),(43,27),layers=lambda:(nn.Parameter(torch.tensor(1.6)),),train=True)
def _sig(t,bias,a,b):
    s=(a/a.norm(dim=1,keepdim=True).clamp_min(1e-6))@(b/b.norm(dim=1,keepdim=True).clamp_min(1e-6)).mT*t.exp()+bias; y=2*torch.eye(s.shape[0],device=s.device,dtype=s.dtype)-1; return -F.logsigmoid(y*s).sum(-1).mean()
fn("lk_siglip_bias","loss",_sig,rh(39,22),rh(39,22),layers=lambda:(PH(BF,1),PH(BF,1)),train=True)
def _zce(w,h,y):
    lg=(h@w.t()).float(); lg=30*torch.tanh(lg/30); z=lg.logsumexp(-1); m=y!=-100; t=lg.gather(1,y.clamp(min=0)[:,None]).squeeze(1); n=m.sum().clamp(min=1); return ((z-t)*m).sum()/n+1e-4*((z*z)*m).sum()/n
def _yig(n,v): 
    def f():
        y=torch.randint(0,v,(n,)); y[::5]=-100; return y
    return f
fn("lk_vocab_softcap_z","loss",_zce,rh(37,44),_yig(37,150),layers=lambda:(PH(BF,150,44),),train=True)
def _ls(l,h,y):
    lp=l(h).log_softmax(-1); nll=-lp.gather(-1,y.unsqueeze(-1)).squeeze(-1); return 0.9*nll-0.1*lp.mean(-1), lp.exp().amax(-1)
fn("lk_label_smooth_conf","loss",_ls,(5,9,34),ri(61,5,9),layers=lambda:(L(34,61),),train=True)
def _focal(l,al,x,y):
    lg=l(x); p=lg.sigmoid(); ce=F.binary_cross_entropy_with_logits(lg,y,reduction="none"); pt=p*y+(1-p)*(1-y); return ((al*y+(1-al)*(1-y))*ce*(1-pt)**2.5).sum(1).mean()
fn("lk_focal_multi","loss",_focal,(46,25),lambda:(torch.rand(46,33)<.2).float(),layers=lambda:(L(25,33),torch.rand(33)))
def _arc(w,x,y):
    c=(F.normalize(x)@F.normalize(w).t()).clamp(-1+1e-7,1-1e-7); s=torch.sqrt(1-c*c); phi=c*math.cos(.5)-s*math.sin(.5); phi=torch.where(c>math.cos(math.pi-.5),phi,c-math.sin(math.pi-.5)*.5)
    o=F.one_hot(y,w.shape[0]).to(c.dtype); lg=(o*phi+(1-o)*c)*16; return F.cross_entropy(lg,y)
fn("lk_arcface","loss",_arc,(35,28),ri(41,35),layers=lambda:(P(41,28),),train=True)
def _samp(e,b,h,y,neg,lq):
    pos=(h*e(y)).sum(-1)+b[y]-lq[y]; ng=h@e(neg).t()+b[neg]-lq[neg]; ng=ng.masked_fill(neg[None]==y[:,None],-1e9); return (torch.logsumexp(torch.cat([pos[:,None],ng],1),1)-pos).mean()
fn("lk_sampled_softmax","loss",_samp,(33,18),ri(90,33),ri(90,26),(90,),layers=lambda:(E(90,18),P(90)),train=True)
def _trip(l,a,p,n):
    a,p,n=(F.normalize(l(t),dim=-1) for t in (a,p,n)); dp=(a-p).pow(2).sum(-1); dn=(a-n).pow(2).sum(-1); return F.relu(dp-dn+.2).mean()+0.005*(a.mean(0)**2).sum(), (dp<dn).float().mean()
fn("lk_triplet_shared","loss",_trip,(30,26),(30,26),(30,26),layers=lambda:(L(26,39),),train=True)
def _hard(x,y):
    sq=(x*x).sum(1); d=(sq[:,None]-2*x@x.t()+sq[None]).clamp(min=1e-12).sqrt(); same=y[:,None]==y[None]; hp=(d*same).amax(1); hn=d.masked_fill(same,1e4).amin(1); return F.softplus(hp-hn).mean()
fn("lk_batch_hard","loss",_hard,(49,17),ri(6,49),train=True)
def _kd(s,t,T,x,h,y):
    ls=s(x); lt=t(h).detach(); kl=(F.softmax(lt/T,-1)*(F.log_softmax(lt/T,-1)-F.log_softmax(ls/T,-1))).sum(-1).mean()*T*T; return .7*kl+.3*F.cross_entropy(ls,y)
fn("lk_kd_two_heads","loss",_kd,(40,21),(40,36),ri(47,40),layers=lambda:(L(21,47),L(36,47),3.0),train=True)
def _listnet(l,x,r,m):
    s=l(F.gelu(x)).squeeze(-1).masked_fill(~m,-1e9); t=(r*2).masked_fill(~m,-1e9); return -(t.softmax(1)*s.log_softmax(1)).masked_fill(~m,0).sum(1).mean()
fn("lk_listnet","loss",_listnet,(9,15,23),(9,15),rb(.8,9,15),layers=lambda:(L(23,1),),train=True)
def _ranknet(l1,l2,x,r):
    s=l2(torch.tanh(l1(x))).squeeze(-1); d=s[:,:,None]-s[:,None]; w=(r[:,:,None]>r[:,None]).to(d.dtype); g=(2**r[:,:,None]-2**r[:,None]).abs(); return (F.softplus(-d)*w*g).sum((1,2))/w.sum((1,2)).clamp(min=1)
fn("lk_lambda_pairs","loss",_ranknet,(6,18,20),lambda:torch.randint(0,5,(6,18)).float(),layers=lambda:(L(20,27),L(27,1)))
def _barlow(l,a,b):
    a,b=l(a),l(b); a=(a-a.mean(0))/(a.std(0)+1e-5); b=(b-b.mean(0))/(b.std(0)+1e-5); c=a.t()@b/a.shape[0]; on=(c.diagonal()-1).pow(2).sum(); return on+0.005*((c**2).sum()-c.diagonal().pow(2).sum())
fn("lk_barlow","loss",_barlow,(50,24),(50,24),layers=lambda:(L(24,35,False),),train=True)
def _vicreg(l,x,y):
    x,y=l(F.relu(x)),l(F.relu(y)); r=F.mse_loss(x,y); x=x-x.mean(0); y=y-y.mean(0); sx=torch.sqrt(x.var(0)+1e-4); sy=torch.sqrt(y.var(0)+1e-4); v=F.relu(1-sx).mean()+F.relu(1-sy).mean(); n,d=x.shape
    cx=(x.T@x)/(n-1); cy=(y.T@y)/(n-1); off=1-torch.eye(d,device=x.device); return 25*r+25*v+((cx*off)**2).sum()/d+((cy*off)**2).sum()/d
fn("lk_vicreg","loss",_vicreg,(37,22),(37,22),layers=lambda:(L(22,31),),train=True)
def _supcon(t,x,y):
    z=F.normalize(x,dim=1); s=z@z.t()/t; eye=torch.eye(s.shape[0],dtype=torch.bool,device=s.device); s=s-s.amax(1,keepdim=True).detach(); e=s.exp().masked_fill(eye,0); lp=s-e.sum(1,keepdim=True).log(); pm=(y[:,None]==y)&~eye; return -(lp*pm).sum(1).div(pm.sum(1).clamp(min=1)).mean()
fn("lk_supcon","loss",_supcon,(42,19),ri(7,42),layers=lambda:(0.1,),train=True)
def _proxy(p,x,y):
    c=F.normalize(x,dim=1)@F.normalize(p,dim=1).t(); o=F.one_hot(y,p.shape[0]).bool(); pe=torch.where(o,torch.exp(-16*(c-.1)),0.).sum(0); ne=torch.where(o,0.,torch.exp(16*(c+.1))).sum(0); return torch.log1p(pe).sum()/o.any(0).sum()+torch.log1p(ne).mean()
fn("lk_proxy_anchor","loss",_proxy,(38,24),ri(21,38),layers=lambda:(P(21,24,scale=1.),),train=True)
# --- batch 2: bilinear, kernels, distances, graphs
def _biaff(u,w,b,l1,l2,x,m):
    h=F.leaky_relu(l1(x),.1); d=F.leaky_relu(l2(x),.1); o=torch.ones_like(h[...,:1]); h=torch.cat([h,o],-1); s=torch.einsum("bxi,oij,byj->bxyo",h,u,d)+(d@w)[:,None]+b; return s.masked_fill(~m[:,None,:,None],-1e4).log_softmax(2)
fn("lk_biaffine_parser","product",_biaff,(3,14,25),rb(.8,3,14),layers=lambda:(P(5,18,17),P(17,5),P(5),L(25,17),L(25,17)),train=True)
def _ntn(w,v,u,a,b):
    t=torch.einsum("nd,kde,ne->nk",a,w,b)+torch.cat([a,b],1)@v; return torch.tanh(t)@u, t.max(1).values
fn("lk_neural_tensor","product",_ntn,(29,17),(29,21),layers=lambda:(P(6,17,21),P(38,6),P(6,3)),train=True)
def _mlb(a,b,c,x,y):
    h=torch.tanh(a(x))[:,:,None]*torch.tanh(b(y))[:,None]; h=torch.sign(h)*torch.sqrt(h.abs()+1e-8); h=h/(h.norm(dim=(1,2),keepdim=True)+1e-6); return (c(h)).softmax(2), h.mean((1,2))
fn("lk_low_rank_bilinear","product",_mlb,(3,11,26),(3,15,19),layers=lambda:(L(26,23),L(19,23),L(23,4)),train=True)
def _rbf(c,ls,w,x):
    x2=x.square().sum(-1,keepdim=True); c2=c.square().sum(-1); d=F.relu(x2-2*x@c.t()+c2); k=torch.exp(-d/(2*F.softplus(ls)**2)); k=k/(k.sum(-1,keepdim=True)+1e-8); return k@w, (d*k).sum(-1)
fn("lk_rbf_normalised","product",_rbf,(5,13,12),layers=lambda:(P(27,12,scale=1.),P(27,scale=1.),P(27,8)),train=True)
def _arcc(w,x,y):
    nx=x.norm(dim=1,keepdim=True); ny=y.norm(dim=1,keepdim=True); c=(x@y.mT/(nx*ny.mT+1e-6)).clamp(-.9999,.9999); th=torch.acos(c); J=torch.sqrt(1-c*c)+(math.pi-th)*c; return (nx*ny.mT*J/math.pi)@w
fn("lk_arccos_kernel","product",_arcc,(32,19),(45,19),layers=lambda:(P(45,6),),train=True)
fn("lk_poly_ridge","product",lambda x,y,v:torch.einsum("bij,bjk->bik",((x@y.mT)/x.shape[-1]+1.).pow(3)*0.5+((x@y.mT)*.3+.1).pow(2),v)-v.mean(1,keepdim=True),(3,23,11),(3,31,11),(3,31,7),train=True)
def _maha(l,mu,x):
    d=x[:,None]-mu; z=torch.einsum("nkd,kde->nke",d,torch.tril(l)); m=(z*z).sum(-1); ld=torch.diagonal(l,dim1=-2,dim2=-1).abs().add(1e-6).log().sum(-1); lp=-.5*(m+x.shape[1]*math.log(2*math.pi))+ld; return torch.logsumexp(lp,1), lp.softmax(1)
fn("lk_mahalanobis_gmm","product",_maha,(41,13),layers=lambda:(P(7,13,13),P(7,13,scale=1.)),train=True)
def _white(x):
    x=x-x.mean(1,keepdim=True); c=x.mT@x/(x.shape[1]-1)+1e-3*torch.eye(x.shape[2],device=x.device); t=torch.diagonal(c,dim1=-2,dim2=-1).sum(-1)[:,None,None]; c=c/t; p=torch.eye(x.shape[2],device=x.device).expand_as(c)
    for _ in range(3): p=1.5*p-.5*p@p@p@c
    return x@p/t.sqrt()
fn("lk_newton_schulz_whiten","product",_white,(3,37,14),train=True)
def _cov(x,w):
    w=w.softmax(0)[:,None]; m=(w*x).sum(0); d=x-m; c=(d*w).t()@d/(1-(w**2).sum()); s=torch.sqrt(torch.diagonal(c)+1e-6); r=c/(s[:,None]*s); return r, c-torch.diag(torch.diagonal(c)), (r.abs()>.2).sum(1)
fn("lk_weighted_corr","product",_cov,(61,26),(61,),train=True)
def _gram(l,x,y):
    fx=l(x); g=fx.flatten(2)@fx.flatten(2).mT/fx[0,0].numel(); h=y.flatten(2)@y.flatten(2).mT/y[0,0].numel(); return ((g-h)**2).mean((1,2)), g.triu(1)
fn("lk_style_gram","product",_gram,(2,19,9,17),(2,19,9,23),layers=lambda:(L(17,23),),train=True)
def _gcn(l1,l2,A,x):
    n=A.shape[0]; A=((A+A.t())>1.2).to(x.dtype)+torch.eye(n,device=x.device,dtype=x.dtype); d=A.sum(1).rsqrt(); An=d[:,None]*A*d; h=F.relu(An@l1(x)); return (An@l2(h)).log_softmax(-1), h
fn("lk_gcn_norm","product",_gcn,ru(47,47),(47,29),layers=lambda:(L(29,33),L(33,7)))
def _gat(w,al,ar,b,x,m):
    h=torch.einsum("bni,hio->bhno",x,w); s=(h*al[:,None]).sum(-1)[...,None]+(h*ar[:,None]).sum(-1)[:,:,None]; s=F.leaky_relu(s,.2).masked_fill(~m[:,None],-9e15).softmax(-1); o=s@h; return F.elu(o.transpose(1,2).flatten(2)+b), o.mean(1)
fn("lk_gat_heads","product",_gat,(2,21,18),rb(.6,2,21,21),layers=lambda:(P(3,18,11),P(3,11),P(3,11),P(33)),train=True)
def _gat2(wl,wr,a,x,e):
    l,r=wl(x),wr(x); z=l[:,:,None]+r[:,None]+e; s=(F.leaky_relu(z,.2)*a).sum(-1); s=s.softmax(2); return torch.einsum("bij,bjd->bid",s,r)+l, s.amax(1)
fn("lk_gatv2_edges","product",_gat2,(2,17,13),(2,17,17,15),layers=lambda:(L(13,15),L(13,15,False),P(15,scale=.6)),train=True)
def _sage(a,b,l2,A,x):
    A=(A<.25).to(x.dtype); deg=A.sum(-1,keepdim=True).clamp(min=1); mean=A@x/deg; mx=torch.where(A[...,None]>0,x[:,None].expand(-1,A.shape[1],-1,-1),-1e4).amax(2); h=F.normalize(a(x)+b(torch.cat([mean,mx],-1)),dim=-1); return l2(F.relu(h))
fn("lk_sage_mean_max","product",_sage,ru(2,19,19),(2,19,16),layers=lambda:(L(16,27),L(32,27),L(27,10)),train=True)
def _gin(eps,l1,bn,l2,A,x):
    h=(1+eps)*x+A@x; h=l1(h); m=h.mean((0,1)); v=h.var((0,1),unbiased=False); h=(h-m)*torch.rsqrt(v+1e-5)*bn; h=l2(F.relu(h)); return F.relu(h), h.sum(1)/A.sum((1,2)).unsqueeze(-1).clamp(min=1)
fn("lk_gin_bn","product",_gin,lambda:(torch.rand(3,15,15)<.3).float(),(3,15,22),layers=lambda:(nn.Parameter(torch.tensor(.1)),L(22,31),P(31,scale=1.),L(31,22)),train=True)
def _cheb(w,b,A,x):
    d=A.sum(-1).clamp(min=1e-3).rsqrt(); Lp=-(d[:,None]*A*d[None]); t0=x; t1=Lp@x; o=t0@w[0]+t1@w[1]
    for k in range(2,w.shape[0]): t0,t1=t1,2*(Lp@t1)-t0; o=o+t1@w[k]
    return torch.relu(o+b)
fn("lk_chebyshev4","product",_cheb,ru(34,34),(34,15),layers=lambda:(P(4,15,21),P(21)),train=True)
def _appnp(l,A,x):
    h=l(x); z=h; A=A/A.sum(-1,keepdim=True)
    for _ in range(4): z=.9*(A@z)+.1*h
    return z.softmax(-1), (z-h).norm(dim=-1)
fn("lk_appnp4","product",_appnp,ru(2,25,25),(2,25,31),layers=lambda:(L(31,9),))
def _gru_mp(l,wi,wh,A,x):
    h=x
    for _ in range(2):
        a=A@l(h); gi=wi(a); gh=wh(h); ir,iz,ic=gi.chunk(3,-1); hr,hz,hc=gh.chunk(3,-1); z=torch.sigmoid(iz+hz); h=(1-z)*torch.tanh(ic+torch.sigmoid(ir+hr)*hc)+z*h
    return h
fn("lk_ggnn","product",_gru_mp,(2,18,18),(2,18,23),layers=lambda:(L(23,23),L(23,69),L(23,69)),train=True)
# --- mixers
def _mixer(n1,t1,t2,n2,c1,c2,x):
    y=n1(x).transpose(1,2); x=x+t2(F.gelu(t1(y))).transpose(1,2); return x+c2(F.gelu(c1(n2(x))))
fn("lk_mlp_mixer","block",_mixer,(3,22,35),layers=lambda:(nn.LayerNorm(35),L(22,45),L(45,22),nn.LayerNorm(35),L(35,50),L(50,35)),train=True)
def _gmlp(n,l1,n2,ws,bs,l2,x):
    u,v=F.gelu(l1(n(x))).chunk(2,-1); v=torch.einsum("st,btd->bsd",ws.tril(),n2(v))+bs[:,None]; return x+l2(u*v)
fn("lk_gmlp_causal","block",_gmlp,(3,21,28),layers=lambda:(nn.LayerNorm(28),L(28,66),nn.LayerNorm(33),P(21,21,scale=.02),nn.Parameter(torch.ones(21)),L(33,28)),train=True)
def _fnet(n1,l1,l2,x):
    N,D=x.shape[1:]; cn=torch.cos(2*math.pi*torch.arange(N,device=x.device)[:,None]*torch.arange(N,device=x.device)/N); sn=torch.sin(2*math.pi*torch.arange(N,device=x.device)[:,None]*torch.arange(N,device=x.device)/N)
    cd=torch.cos(2*math.pi*torch.outer(torch.arange(D,device=x.device),torch.arange(D,device=x.device))/D); sd=torch.sin(2*math.pi*torch.outer(torch.arange(D,device=x.device),torch.arange(D,device=x.device))/D)
    h=n1(x+cn@(x@cd)-sn@(x@sd)); return h+l2(F.relu(l1(h)).square())
fn("lk_fnet_dft","block",_fnet,(3,19,26),layers=lambda:(nn.LayerNorm(26),L(26,41),L(41,26)),train=True)
def _s2(l1,l2,x):
    h=l1(x); a,b,c=h.chunk(3,-1); a=a.roll(1,1); b=b.roll(-1,2); s=a+b+c; w=s.mean((1,2)); w=torch.sigmoid(w)[:,None,None]; return l2(F.gelu(w*a+(1-w)*b+c.flip(1)*.5))
fn("lk_s2mlp_shift","block",_s2,(2,7,9,19),layers=lambda:(L(19,66),L(22,15)),train=True)
def _axialmix(wh,ww,lc,x):
    a=torch.einsum("bhwc,hk->bkwc",x,wh); b=torch.einsum("bhwc,wk->bhkc",x,ww); c=lc(x); g=torch.stack([a,b,c]).mean((2,3)).softmax(0); return a*g[0][:,None,None]+b*g[1][:,None,None]+F.silu(c*g[2][:,None,None])
fn("lk_vip_axial","block",_axialmix,(2,11,13,18),layers=lambda:(P(11,11),P(13,13),L(18,18)),train=True)
def _resmlp(a1,b1,t,g1,a2,b2,l1,l2,g2,x):
    x=x+g1*(torch.einsum("nm,bmd->bnd",t,x*a1+b1)); return x+g2*l2(F.gelu(l1(torch.addcmul(b2,a2,x))))
fn("lk_resmlp_affine","block",_resmlp,rh(3,23,26),layers=lambda:(PH(BF,26),PH(BF,26),PH(BF,23,23),PH(BF,26),PH(BF,26),PH(BF,26),L(26,41,dt=BF),L(41,26,dt=BF),PH(BF,26)),train=True)
# --- KAN, Fourier, NeRF
def _kan(w,wb,x):
    k=torch.linspace(-2.2,2.2,12,device=x.device); x_=x[...,None]; b=((x_>=k[:-1])&(x_<k[1:])).to(x.dtype)
    for p in range(1,4): b=(x_-k[:-(p+1)])/(k[p:-1]-k[:-(p+1)])*b[...,:-1]+(k[p+1:]-x_)/(k[p+1:]-k[1:-p])*b[...,1:]
    return F.silu(x)@wb+b.flatten(-2)@w
fn("lk_kan_bspline3","product",_kan,(31,14),layers=lambda:(P(14*8,19),P(14,19)),train=True)
def _kanr(w,wb,n,x):
    g=torch.linspace(-2,2,7,device=x.device,dtype=x.dtype); h=n(x); b=torch.exp(-((h.unsqueeze(-1)-g)/(4/6))**2); return torch.einsum("big,oig->bo",b,w)+F.linear(F.silu(x),wb)
fn("lk_fastkan_rbf","product",_kanr,(37,18),layers=lambda:(P(23,18,7),P(23,18),nn.LayerNorm(18)),train=True)
def _kanc(c,x):
    t=torch.tanh(x); T=[torch.ones_like(t),t]
    for _ in range(3): T.append(2*t*T[-1]-T[-2])
    y=torch.einsum("bid,iod->bo",torch.stack(T,-1),c); return y-y.mean(-1,keepdim=True)
fn("lk_chebykan","product",_kanc,(43,15),layers=lambda:(P(15,22,5),),train=True)
def _nerf(fr,l1,l2,l3,ls,lr,x,d):
    e=(x[...,None]*fr).flatten(-2); e=torch.cat([x,e.sin(),e.cos()],-1); h=F.relu(l1(e)); h=F.relu(l2(torch.cat([h,e],-1))); s=F.softplus(ls(h)-1); dd=(d[...,None]*fr[:2]).flatten(-2); r=torch.sigmoid(lr(F.relu(l3(torch.cat([h,dd.sin(),dd.cos()],-1)))))*(1+2*.001)-.001; return s.squeeze(-1),r
fn("lk_nerf_skip","block",_nerf,(6,11,3),(6,11,3),layers=lambda:(2.**torch.arange(4),L(27,34),L(61,34),L(46,21),L(34,1),L(21,3)),train=True)
def _vol(l,x,t):
    h=l(x); s=F.relu(h[...,3]); c=h[...,:3].sigmoid(); dl=torch.cat([t[:,1:]-t[:,:-1],torch.full_like(t[:,:1],1e10)],1); a=1-torch.exp(-s*dl.abs()); tr=torch.cumprod(torch.cat([torch.ones_like(a[:,:1]),1-a+1e-10],1),1)[:,:-1]; w=a*tr; return (w[...,None]*c).sum(1),(w*t).sum(1),w.sum(1)
fn("lk_volume_render","product",_vol,(17,13,22),ru(17,13),layers=lambda:(L(22,4),))
def _siren(w1,w2,w3,x):
    h=torch.sin(30*w1(x)); z=w2(h); y=torch.sin(30*z); c=30*torch.cos(30*z); return w3(y), w3(c*h.mean(-1,keepdim=True))
fn("lk_siren_deriv","product",_siren,(53,5),layers=lambda:(L(5,31),L(31,31),L(31,3)),train=True)
def _pinn(W1,b1,W2,b2,w3,x):
    z1=x@W1+b1; a=torch.tanh(z1); d=1-a*a; dd=-2*a*d; ux=d*W1[0]; uxx=dd*W1[0]**2; z2=a@W2+b2; t=torch.tanh(z2); s=1-t*t; zx=ux@W2; zxx=uxx@W2; u=t@w3; gx=(s*zx)@w3; gxx=(s*zxx-2*t*s*zx*zx)@w3; ut=(s*((d*W1[1])@W2))@w3
    return ((ut+u*gx-.01/math.pi*gxx)**2).mean()
fn("lk_pinn_burgers","product",_pinn,(62,2),layers=lambda:(P(2,25,scale=1.),P(25),P(25,27),P(27),P(27,1)),train=True)
def _rff(w,b,o,x,y):
    f=lambda v:math.sqrt(2/w.shape[1])*torch.cos(v@w+b); p,q=f(x),f(y); return p@q.t()-torch.exp(-.5*((x[:,None]-y)**2).sum(-1)), F.relu(p@o)
fn("lk_rff_vs_exact","product",_rff,(26,9),(33,9),layers=lambda:(P(9,70,scale=1.),P(70,scale=3.),P(70,6)),train=True)
def _perf(w,q,k,v):
    f=lambda t:torch.exp(t@w.mT-(t*t).sum(-1,keepdim=True)/2-(t@w.mT).amax((-1,-2),keepdim=True))+1e-4; q,k=f(q*.4),f(k*.4); kv=k.mT@v; return (q@kv)/(q@k.sum(-2).unsqueeze(-1)).clamp(min=1e-6)
fn("lk_positive_features","product",_perf,(2,3,19,12),(2,3,23,12),(2,3,23,9),layers=lambda:(P(17,12,scale=1.),),train=True)
def _deepset(a,b,c,d,x,m):
    h=F.elu(a(x)); s=torch.where(m[...,None],h,0.).sum(1,keepdim=True)/m.sum(1)[:,None,None].clamp(min=1); mx=torch.where(m[...,None],h,-math.inf).amax(1,keepdim=True).clamp(min=-1e3); h=F.elu(b(h)-c(mx)+s.roll(1,-1)); return d((h*m.unsqueeze(-1)).sum(1))
fn("lk_deepset_equiv","block",_deepset,(5,14,11),lambda:torch.arange(14)[None]<torch.tensor([14,5,9,3,12])[:,None],layers=lambda:(L(11,24),L(24,24),L(24,24,False),L(24,6)),train=True)
# --- recommenders
def _dlrm(es,bot,t1,t2,i,x):
    d=F.relu(bot(x)); e=es[i+torch.arange(i.shape[1],device=i.device)*20]; z=torch.cat([d[:,None],e],1); g=z@z.mT; n=z.shape[1]; r,c=torch.tril_indices(n,n,-1,device=x.device); return torch.sigmoid(t2(F.relu(t1(torch.cat([d,g[:,r,c]],1))))).clamp(1e-6,1-1e-6)
fn("lk_dlrm","product",_dlrm,ri(20,39,6),(39,13),layers=lambda:(P(120,15),L(13,15),L(36,25),L(25,1)),train=True)
def _dcn2(u,v,b,l,x):
    h=x
    for k in range(3): h=x*(h@v[k]@u[k]+b[k])+h
    return l(torch.cat([h,x],-1)).squeeze(-1),h
fn("lk_dcn_v2_lowrank","product",_dcn2,(42,35),layers=lambda:(P(3,7,35),P(3,35,7),P(3,35),L(70,1)),train=True)
def _dcn1(w,b,x):
    h=x
    for k in range(4): h=x*(h@w[k])[:,None]+b[k]+h
    return F.layer_norm(h,h.shape[-1:])
fn("lk_dcn_v1_vectors","product",_dcn1,(45,51),layers=lambda:(P(4,51),P(4,51)),train=True)
def _dfm(e,w,l1,l2,b,i,x):
    v=e(i)*x[...,None]; lin=(w(i).squeeze(-1)*x).sum(1); fm=.5*(v.sum(1)**2-(v**2).sum(1)); return torch.sigmoid(lin+fm.sum(1)+l2(F.relu(l1(v.flatten(1)))).squeeze(1)+b), fm
fn("lk_deepfm","product",_dfm,ri(75,33,8),ru(33,8),layers=lambda:(E(75,9),E(75,1),L(72,29),L(29,1),P(1)),train=True)
def _afm(e,a,h,p,i):
    v=e(i); n=v.shape[1]; r,c=torch.triu_indices(n,n,1,device=i.device); q=v[:,r]*v[:,c]; s=(torch.relu(a(q))@h).softmax(1); return (s[...,None]*q).sum(1)@p, s.amax(1)
fn("lk_afm_pairs","product",_afm,ri(50,29,7),layers=lambda:(E(50,13),L(13,10),P(10),P(13)),train=True)
def _two(eu,ei,lu,li,t,u,i,x,pop):
    a=F.normalize(lu(torch.cat([eu(u),x],-1)),dim=-1); b=F.normalize(li(ei(i)),dim=-1); s=a@b.t()/t-pop.log(); s=s.masked_fill((i[:,None]==i[None])&~torch.eye(len(i),dtype=torch.bool,device=i.device),-1e4); return (s.logsumexp(1)-s.diagonal()).mean()
fn("lk_two_tower_logq","loss",_two,ri(60,34),ri(80,34),(34,7),lambda:torch.rand(34).clamp(min=.01),layers=lambda:(E(60,16),E(80,19),L(23,21),L(19,21),.07))
def _din(e,l1,l2,o,c,h):
    t=e(c)[:,None].expand(-1,h.shape[1],-1); s=e(h); z=torch.cat([t,s,t-s,t*s],-1); a=l2(torch.sigmoid(l1(z))).squeeze(-1); a=torch.where(h>0,a,torch.full_like(a,-2.**31+1)).softmax(1); u=torch.einsum("bt,btd->bd",a,s); return o(torch.cat([u,t[:,0],u*t[:,0]],1))
fn("lk_din_activation","product",_din,ri(70,17),lambda:torch.randint(0,70,(17,12))*(torch.rand(17,12)<.8),layers=lambda:(E(70,14,padding_idx=0),L(56,19),L(19,1),L(42,2)),train=True)
def _mmoe(w,b,g,tw,x):
    h=F.relu(torch.einsum("bi,eio->beo",x,w)+b); p=torch.einsum("bi,tie->bte",x,g).softmax(-1); z=p@h; return torch.sigmoid((z*tw).sum(-1)).unbind(1)
fn("lk_mmoe","product",_mmoe,(36,27),layers=lambda:(P(4,27,17),P(4,17),P(3,27,4),P(3,17)),train=True)
def _softmoe(phi,w1,w2,x):
    lg=torch.einsum("bnd,des->bnes",F.normalize(x,dim=-1),phi); dsp=lg.softmax(1); cmb=lg.flatten(2).softmax(-1).view_as(lg); s=torch.einsum("bnd,bnes->besd",x,dsp); y=torch.einsum("besf,efd->besd",F.gelu(torch.einsum("besd,edf->besf",s,w1)),w2); return torch.einsum("besd,bnes->bnd",y,cmb)
fn("lk_soft_moe","product",_softmoe,(2,17,22),layers=lambda:(P(22,3,5),P(3,22,27),P(3,27,22)),train=True)
# --- batch 3: half types, slices of one product, flows, tabular
def LH(i,o,b=True): return nn.Linear(i,o,bias=b,dtype=HF)
def LB(i,o,b=True): return nn.Linear(i,o,bias=b,dtype=BF)
def _many(l,x):
    y=l(x); a,b,c,d,r=y[...,:9],y[...,9:18],y[...,18:27],y[...,27:36],y[...,36:]; g=torch.sigmoid(a); h=g*torch.tanh(b)+(1-g)*c.roll(1,1); k=(h*d).sum(-1,keepdim=True)*9**-.5; return h*torch.exp(-F.softplus(k)), F.relu(r)**2, d.flip(1)*y[...,::4][...,:9]
fn("lk_five_slices","product",_many,rh(3,14,31),layers=lambda:(LB(31,47),),train=True)
def _rot(l,c,s,n1,n2,x):
    q,k,v=l(x).view(x.shape[0],x.shape[1],3,4,-1).unbind(2); r=lambda t:torch.cat([-t[...,t.shape[-1]//2:],t[...,:t.shape[-1]//2]],-1)
    q=F.rms_norm(q,q.shape[-1:],n1); k=F.rms_norm(k,k.shape[-1:],n2); q=q*c+r(q)*s; k=k*c+r(k)*s; return (q*k).sum(-1), v.transpose(1,2)*q.transpose(1,2)[...,:1]
fn("lk_qk_norm_rope_slices","product",_rot,rh(2,13,30),layers=lambda:(LB(30,120),torch.rand(13,1,10).bfloat16(),torch.rand(13,1,10).bfloat16(),PH(BF,10),PH(BF,10)),train=True)
def _lin8(q,s,b,g,x):
    xs=x.abs().amax(-1,keepdim=True).float()/127+1e-8; xi=(x.float()/xs).round().clamp(-127,127); y=(xi@q.float().t())*xs*s+b; y=y.half(); return F.rms_norm(y,y.shape[-1:],g,1e-5)*torch.sigmoid(y)
fn("lk_w8a8_dynamic","product",_lin8,rf(4,9,38),layers=lambda:(torch.randint(-127,128,(46,38),dtype=torch.int8),torch.rand(46)*.01,torch.randn(46),torch.randn(46).half()))
def _int4b(q,sz,x):
    w=torch.empty(0); sh=torch.tensor([0,4],dtype=torch.uint8,device=q.device); u=((q.unsqueeze(-1)>>sh)&15).flatten(1).to(x.dtype)-8; s,z=sz.unbind(-1); w=u.unflatten(1,(-1,13))*s.unsqueeze(-1)+z.unsqueeze(-1); y=x@w.flatten(1).t(); return torch.where(y>0,y,torch.expm1(y)*1.673)*1.0507
fn("lk_int4_shift_vec","product",_int4b,rf(23,52),layers=lambda:(_u4(31,52),(torch.rand(31,4,2)*.1).half()))
def _int2(q,s,x):
    w=torch.cat([(q>>k)&3 for k in (0,2,4,6)],1).to(torch.int8)-1; y=F.linear(x,w.to(x.dtype))*s; m=y.mean(-1,keepdim=True); return (y-m)/(y.std(-1,keepdim=True)+1e-3), y.argmax(-1)
fn("lk_ternary_2bit","product",_int2,rf(27,56),layers=lambda:(torch.randint(0,256,(39,14),dtype=torch.uint8)&0xAA,torch.rand(39).half()*.1))
def _fp8(w,s,x):
    e=((w>>3)&15).float(); m=(w&7).float()/8; sg=1-2*((w>>7)&1).float(); v=sg*torch.where(e==0,m*2**-6.,(1+m)*torch.exp2(e-7)); v=v.unflatten(0,(-1,6))*s[:,None]; y=x@v.flatten(0,1); return y*F.relu6(y+3)/6
fn("lk_e4m3_bits","product",_fp8,(29,42),layers=lambda:(torch.randint(0,127,(42,37),dtype=torch.uint8),torch.rand(7,37)*.01))
def _gptq(q,s,z,gi,x):
    w=((q>>torch.arange(0,32,4,device=q.device,dtype=torch.int32)[None,:,None].expand(q.shape[0],-1,q.shape[2]))&15) if q.dim()==3 else q; w=w.flatten(0,1).half(); w=(w-z[gi])*s[gi]; y=x@w; a,b=y[:,1::2],y[:,::2]; return F.gelu(a)*b
fn("lk_gptq_gidx","product",_gptq,rf(19,40),layers=lambda:(torch.randint(0,2**30,(5,1,34),dtype=torch.int32),(torch.rand(4,34)*.02).half(),torch.randint(5,9,(4,34)).half(),torch.randint(0,4,(40,))))
def _llmint8(w,sw,thr,x):
    o=x.abs().amax(0)>thr; xo=torch.where(o,x,0.); xr=torch.where(o,0.,x); s=xr.abs().amax(1,keepdim=True).clamp(min=1e-6)/127; r=(xr/s).round()*s; wq=(w*sw[:,None]).to(x.dtype); return xo@wq.t()+r@wq.t(), o
fn("lk_outlier_split","product",_llmint8,rf(25,58),layers=lambda:(torch.randint(-127,127,(33,58)).float(),torch.rand(33)*.01,2.5))
def _blockdiag(w,l,g,x):
    b,t,_=x.shape; h=torch.einsum("btgi,gio->btgo",x.view(b,t,w.shape[0],-1),w); h=h.transpose(2,3).reshape(b,t,-1); h=F.group_norm(h.transpose(1,2),w.shape[0],g).transpose(1,2); return l(F.silu(h))+x
fn("lk_monarch_shuffle","product",_blockdiag,(3,11,36),layers=lambda:(P(4,9,9),L(36,36),P(36,scale=1.)),train=True)
def _hyper(l,x,z):
    w=l(z); A=w[:,:60].view(-1,12,5); Bm=w[:,60:60+45].view(-1,5,9); c=w[:,105:114]; return F.mish(torch.bmm(torch.bmm(x,A),Bm)+c[:,None]), w[:,114:].tanh()
fn("lk_hypernet_lowrank","product",_hyper,(7,13,12),(7,18),layers=lambda:(L(18,117),),train=True)
def _film(e,a,b,c,x,i):
    p=e(i); g,bt=a(F.silu(p)).chunk(2,-1); h=F.layer_norm(x,x.shape[-1:]); h=h*(1+g[:,None])+bt[:,None]; h=c(F.gelu(b(h),approximate="tanh")); return x+h*p.mean(-1)[:,None,None]
fn("lk_adaln_label","block",_film,rh(4,15,26),ri(12,4),layers=lambda:(E(12,19,dt=BF),LB(19,52),LB(26,49),LB(49,26)),train=True)
# flows
def _coup(m,l1,l2,l3,x):
    xm=x*m; h=F.leaky_relu(l2(F.leaky_relu(l1(xm),.01)),.01); s,t=l3(h).chunk(2,-1); s=torch.tanh(s)*(1-m); t=t*(1-m); z=xm+(1-m)*(x*s.exp()+t); return z,s.sum(-1)-.5*(z**2+math.log(2*math.pi)).sum(-1)
fn("lk_realnvp","block",_coup,(39,22),layers=lambda:((torch.arange(22)%2).float(),L(22,31),L(31,31),L(31,44)),train=True)
def _glow(ls,b,Lm,U,sg,lg,l1,l2,x):
    x=(x+b)*ls.exp(); n=lg.shape[0]; W=(Lm.tril(-1)+torch.eye(n,device=x.device))@(U.triu(1)+torch.diag(sg*lg.exp())); z=torch.einsum("oc,bchw->bohw",W,x); a,c=z.split(n//2,1); h=l2(F.relu(l1(a.permute(0,2,3,1)))).permute(0,3,1,2); s=torch.sigmoid(h[:,::2]+2); c=(c+h[:,1::2])*s
    return torch.cat([a,c],1), (ls.sum()+lg.sum())*x.shape[2]*x.shape[3]+s.log().sum((1,2,3))
fn("lk_glow_step","block",_glow,(2,12,7,9),layers=lambda:(P(12,1,1),P(12,1,1),P(12,12),P(12,12),torch.randn(12).sign(),P(12),L(6,21),L(21,12)),train=True)
def _maf(w1,w2,m1,m2,b,x):
    h=torch.relu(x@(w1*m1)+b); o=h@(w2*m2); mu,a=o[:,::2],o[:,1::2].clamp(-5,3); u=(x-mu)*torch.exp(-a); return u, -a.sum(1), (-.5*u*u-a).mean()
fn("lk_made","product",_maf,(48,15),layers=lambda:(P(15,33),P(33,30),(torch.arange(33)%14>=torch.arange(15)[:,None]).float(),(torch.arange(30)//2>(torch.arange(33)%14)[:,None]).float(),P(33)),train=True)
def _planar(u,w,b,x):
    ld=0
    for k in range(3):
        wu=(w[k]*u[k]).sum(); uh=u[k]+(F.softplus(wu)-1-wu)*w[k]/(w[k]**2).sum().clamp(min=1e-6); a=torch.tanh(x@w[k]+b[k]); x=x+uh*a[:,None]; ld=ld+((1-a*a)*(w[k]@uh)+1).abs().add(1e-7).log()
    return x,ld
fn("lk_planar_flow3","product",_planar,(55,18),layers=lambda:(P(3,18),P(3,18,scale=.5),P(3)),train=True)
def _spline(l,x,y):
    p=l(x); W=(p[:,:8].softmax(-1)*.984+.002)*6; H=(p[:,8:16].softmax(-1)*.984+.002)*6; D=F.softplus(p[:,16:])+.001; cw=F.pad(W.cumsum(-1),(1,0))-3; chh=F.pad(H.cumsum(-1),(1,0))-3; k=((y[:,None]>=cw[:,:-1])).sum(-1,keepdim=True).sub(1).clamp(0,7)
    g=lambda t:t.gather(-1,k).squeeze(-1); t=((y-g(cw))/g(W)).clamp(0,1); s=g(H)/g(W); d0,d1=g(D[:,:8]),g(D[:,1:]); den=s+(d1+d0-2*s)*t*(1-t); return g(chh)+g(H)*(s*t*t+d0*t*(1-t))/den, 2*s.log()+(d1*t*t+2*s*t*(1-t)+d0*(1-t)**2).log()-2*den.log()
fn("lk_rq_spline_head","product",_spline,(57,14),(57,),layers=lambda:(L(14,25),))
# tabular
def _tabnet(a,f1,f2,x):
    pr=torch.ones_like(x); h=x; outs=[]
    for k in range(2):
        m=(a[k](h)*pr).softmax(-1); pr=pr*(1.3-m); z=f1(m*x); z=z[:,:24]*torch.sigmoid(z[:,24:]); y=f2(z); y=(z+y[:,:24]*torch.sigmoid(y[:,24:]))*math.sqrt(.5); outs.append(F.relu(y)); h=torch.cat([y[:,8:],m[:,:5]],1)
    return sum(outs), -(m*torch.log(m+1e-15)).sum(1).mean()
fn("lk_tabnet2","block",_tabnet,(33,21),layers=lambda:(nn.ModuleList([L(21,21,False),L(21,21,False)]),L(21,48),L(24,48)),train=True)
def _ftt(w,b,cls,ec,off,l,n,x,c):
    t=torch.cat([cls.expand(x.shape[0],-1,-1),x[...,None]*w+b,ec(c+off)],1); h=n(t); q,k,v=l(h).chunk(3,-1); o=torch.softmax(q[:,:1]@k.mT*(q.shape[-1]**-.5),-1)@v; return F.relu(o.squeeze(1)+t[:,0])
fn("lk_ft_tokenizer_cls","block",_ftt,(23,9),ri(5,23,4),layers=lambda:(P(9,17),P(9,17),P(1,1,17),E(20,17),torch.arange(4)*5,L(17,51),nn.LayerNorm(17)),train=True)
def _node(fs,th,tp,leaf,x):
    f=torch.einsum("bi,itd->btd",x,fs.softmax(0)); s=((f-th)*torch.exp(-tp)*.5+.5).clamp(0,1); s=torch.stack([s,1-s],-1); p=s[:,:,0]
    for d in range(1,s.shape[2]): p=(p[:,:,:,None]*s[:,:,d,None]).flatten(2)
    return torch.einsum("btl,tlo->bto",p,leaf).mean(1)
fn("lk_oblivious_trees","product",_node,(34,19),layers=lambda:(P(19,7,3),P(7,3),P(7,3),P(7,8,5)),train=True)
def _ple(edges,w,b,l,x):
    lo,hi=edges[:,:-1],edges[:,1:]; e=((x[...,None]-lo)/(hi-lo)).clamp(0,1); h=torch.einsum("bfk,fkd->bfd",e,w)+b; return l(F.relu(h).flatten(1)), h.norm(dim=-1)
fn("lk_piecewise_linear_enc","product",_ple,(29,8),layers=lambda:(torch.linspace(-2,2,7).repeat(8,1)+torch.rand(8,1),P(8,6,11),P(8,11),L(88,13)),train=True)
def _plr(c,w,b,n,x):
    v=2*math.pi*c*x[...,None]; p=torch.cat([v.cos(),v.sin()],-1); h=F.relu((p.unsqueeze(-2)@w).squeeze(-2)+b); return n(h).mean(1), h.amax((0,2))
fn("lk_plr_numeric","product",_plr,(26,10),layers=lambda:(P(10,7),P(10,14,9),P(10,9),nn.LayerNorm(9)),train=True)
def _autoint(q,k,v,r,e,i,x):
    h=e(i)*x[...,None]; f=lambda m:m(h).unflatten(-1,(2,-1)).transpose(1,2); a=(f(q)@f(k).mT).softmax(-1)@f(v); return F.relu(a.transpose(1,2).flatten(2)+r(h)).flatten(1)
fn("lk_autoint","block",_autoint,ri(64,14,9),ru(14,9),layers=lambda:(L(15,22,False),L(15,22,False),L(15,22,False),L(15,22,False),E(64,15)),train=True)
def _xdeep(w1,w2,l,x):
    z=torch.einsum("bhd,bmd->bhmd",x,x); h1=torch.relu(torch.einsum("bhmd,khm->bkd",z,w1)); h2=torch.relu(torch.einsum("bhd,bmd,khm->bkd",h1,x,w2)); return l(torch.cat([h1.sum(-1),h2.sum(-1)],1))
fn("lk_cin","product",_xdeep,(9,8,11),layers=lambda:(P(12,8,8),P(7,12,8),L(19,3)),train=True)
def _senet(r1,r2,w,x):
    z=torch.cat([x.mean(-1),x.amax(-1)],1); a=torch.relu(r2(torch.relu(r1(z)))); v=x*a[...,None]; i,j=torch.triu_indices(x.shape[1],x.shape[1],1,device=x.device); p=(v@w)[:,i]*v[:,j]; return p.flatten(1), (v*v).sum((1,2))
fn("lk_fibinet","product",_senet,(21,7,12),layers=lambda:(L(14,5),L(5,7),P(12,12)),train=True)
def _bst(e,pe,te,l,o,i,t,tgt):
    h=e(i)+pe[:i.shape[1]]+te(torch.log1p(t.float()).long().clamp(max=9)); h=torch.cat([h,e(tgt)[:,None]],1); q,k,v=l(h).split(16,-1); s=q@k.mT/4; m=F.pad(i==0,(0,1)); a=s.masked_fill(m[:,None],-1e9).softmax(-1); h=F.leaky_relu((a@v)+h); return o(torch.cat([h[:,-1],(h*(~m)[...,None]).sum(1)],-1))
fn("lk_behaviour_seq","block",_bst,ri(40,8,13),ri(3000,8,13),ri(40,8),layers=lambda:(E(40,16),P(20,16),E(10,16),L(16,48),L(32,2)),train=True)
def _sasrec(e,l,x,pos,neg):
    h=l(F.layer_norm(x,x.shape[-1:])); p=(h*e(pos)).sum(-1); n=torch.einsum("btd,btkd->btk",h,e(neg)); m=pos>0; ls=-F.logsigmoid(p)-F.logsigmoid(-n).mean(-1); return (ls*m).sum()/m.sum(), ((p[...,None]>n).float().mean(-1)*m).sum(1)
fn("lk_bpr_negatives","loss",_sasrec,(5,11,17),ri(60,5,11),ri(60,5,11,6),layers=lambda:(E(60,17,padding_idx=0),L(17,17)),train=True)
# bags, quantised tables
def _bag(w,o,l,i,pw):
    e=F.embedding(i,w,max_norm=None); b=(e*pw[...,None]).sum(2)/(pw.sum(-1,keepdim=True)+1e-9); h=l(b.flatten(1)); return torch.where(h>0,h,o*h), b.pow(2).sum(-1).sqrt()
fn("lk_weighted_bags","product",_bag,ri(55,19,5,7),ru(19,5,7),layers=lambda:(P(55,11),P(1),L(55,27)),train=True)
def _qemb(q,s,z,l,i):
    r=q[i]; h=(r.float()-z[i][...,None])*s[i][...,None]; h=h-h.mean(-1,keepdim=True); return l(h*torch.rsqrt(h.var(-1,keepdim=True)+1e-5)), h.amax(1)
fn("lk_int8_rows_table","product",_qemb,ri(90,6,14),layers=lambda:(torch.randint(0,255,(90,21),dtype=torch.uint8),torch.rand(90)*.02,torch.rand(90)*128,L(21,30)))
def _pq(cb,l,c):
    h=torch.cat([F.embedding(c[...,k],cb[k]) for k in range(3)],-1); y=l(h); return y.softmax(-1)*h.norm(dim=-1,keepdim=True)+F.pad(h,(0,2))
fn("lk_pq_table","product",_pq,ri(16,9,11,3),layers=lambda:(P(3,16,8),L(24,26)),train=True)
def _vq(cb,l,x):
    z=l(x); d=z.pow(2).sum(-1,keepdim=True)-2*z@cb.t()+cb.pow(2).sum(1); k=d.argmin(-1); q=cb[k]; st=z+(q-z).detach(); return st,(q.detach()-z).pow(2).mean()*.25+(q-z.detach()).pow(2).mean(), F.one_hot(k,cb.shape[0]).float().mean((0,1))
fn("lk_vq_straight","product",_vq,(4,17,15),layers=lambda:(P(29,10,scale=1.),L(15,10)),train=True)
def _rvq(c1,c2,x):
    r=x; o=torch.zeros_like(x); ls=0.
    for c in (c1,c2):
        s=F.normalize(r,dim=-1)@F.normalize(c,dim=-1).t(); q=F.embedding(s.argmax(-1),c); ls=ls+((r.detach()-q)**2).mean(); r=r-q.detach(); o=o+q
    return x+(o-x).detach(),ls
fn("lk_residual_vq_cos","product",_rvq,(37,18),layers=lambda:(P(23,18,scale=1.),P(31,18,scale=.5)),train=True)
def _fsq(i,o,x):
    z=i(x); lv=torch.tensor([8.,6.,5.,5.],device=x.device); hl=(lv-1)*(1-1e-3)/2; of=torch.where(lv%2==1,0.,.5); b=torch.tanh(z+torch.tan(of/hl))*hl-of; r=b+(b.round()-b).detach(); w=(lv//2); c=(r+w)@torch.tensor([1.,8.,48.,240.],device=x.device); return o(r/w),c.round().int()
fn("lk_fsq","product",_fsq,(6,9,13),layers=lambda:(L(13,4),L(4,19)),train=True)
def _lfq(i,x):
    z=i(x); q=torch.where(z>0,1.,-1.); st=z+(q-z).detach(); p=torch.sigmoid(4*z); H=-(p*p.clamp(min=1e-5).log()+(1-p)*(1-p).clamp(min=1e-5).log()); m=p.mean((0,1)); return st,H.mean()-(-(m*m.log()+(1-m)*(1-m).log())).mean(),((z>0).long()*(2**torch.arange(z.shape[-1],device=x.device))).sum(-1)
fn("lk_lfq_entropy","product",_lfq,(5,12,22),layers=lambda:(L(22,9),),train=True)
def _relpos(tab,w,q,k):
    n,m=q.shape[-2],k.shape[-2]; r=torch.arange(m,device=q.device)-torch.arange(n,device=q.device)[:,None]; a=r.abs(); big=4+(torch.log(a.float().clamp(min=1)/4)/math.log(32/4)*4).long(); bk=torch.where(a<4,a,big.clamp(max=7))+(r>0).long()*8; s=q@k.mT+tab[bk].permute(2,0,1); return s.softmax(-1), (s*w).logsumexp((-1))
fn("lk_t5_buckets","product",_relpos,(2,3,17,9),(2,3,22,9),layers=lambda:(P(16,3),P(1,3,1,1)),train=True)
def _mean(e,l,i,seg):
    h=e(i)+0.1*torch.cos(i.unsqueeze(-1)/torch.pow(10000.,torch.arange(12,device=i.device)/12)); o=F.one_hot(seg,6).to(h.dtype); s=torch.einsum("btk,btd->bkd",o,h)/(o.sum(1).unsqueeze(-1)+1e-4); return l(s-s.mean(1,keepdim=True)).tanh()
fn("lk_segment_onehot_mean","product",_mean,ri(33,5,16),ri(6,5,16),layers=lambda:(E(33,12),L(12,20)),train=True)
# --- batch 4: einsum, broadcast, five axes, chains, reductions
fn("lk_einsum5_gate","product",lambda w,g,x:(lambda y:y*torch.sigmoid(torch.einsum("bthgo,hg->bto",y,g))[:,:,None,None]+y.flip(2).roll(1,3)*0.5)(torch.einsum("bthgi,hgio->bthgo",x,w)),(2,7,3,4,9),layers=lambda:(P(3,4,9,11),P(3,4)),train=True)
fn("lk_einsum_three","product",lambda a,c,x,y:F.softplus(torch.einsum("bi,ir,br->br",x,a,y))-torch.einsum("bi,ij,bj->b",x,c,x)[:,None].tanh(),(31,17),(31,23),layers=lambda:(P(17,23),P(17,17)),train=True)
fn("lk_cp_decode","product",lambda a,b,c,l,x:(lambda t:t/(1+t.abs())-t.mean((1,2),keepdim=True))(torch.einsum("nr,ir,jr,kr->nijk",l(x).softmax(-1),a,b,c)),(6,13),layers=lambda:(P(7,5,scale=1.),P(9,5,scale=1.),P(11,5,scale=1.),L(13,5)),train=True)
def _tuck(g,u,v,w,x): z=torch.einsum("pqr,ip,jq,kr->ijk",g,u,v,w); y=torch.einsum("bij,ijk->bk",x,z); return F.celu(y,.7),(z**2).mean((0,1)).sqrt()
fn("lk_tucker_layer","product",_tuck,(15,8,9),layers=lambda:(P(3,4,5),P(8,3,scale=.7),P(9,4,scale=.7),P(22,5,scale=.7)),train=True)
def _tt(a,b,c,bias,x):
    h=x.view(-1,4,5,6); h=torch.einsum("nijk,ipr->npjkr",h,a); h=torch.einsum("npjkr,rjqs->npqks",h,b); h=torch.einsum("npqks,skt->npqt",h,c); return F.silu(h.flatten(1)+bias)+h.flatten(1).roll(3,1)*1/3
fn("lk_tensor_train","product",_tt,(17,120),layers=lambda:(P(4,3,2,scale=.6),P(2,5,4,3,scale=.6),P(3,6,5,scale=.6),P(60)),train=True)
def _outer(a,b,n,o,m,x):
    h=n(x); p,q=a(h)*m[...,None],b(h)*m[...,None]; z=torch.einsum("sic,sjd->ijcd",p,q); nrm=torch.einsum("si,sj->ij",m,m); return o(z.flatten(2))/(nrm[...,None]+1e-3)
fn("lk_outer_product_mean","block",_outer,lambda:(torch.rand(5,13)<.8).float(),(5,13,18),layers=lambda:(L(18,6),L(18,7),nn.LayerNorm(18),L(42,11)),train=True)
def _trimul(n,ab,g,o,no,m,z):
    h=n(z); y=ab(h); p=y[...,:20]*torch.sigmoid(y[...,20:40])*m[...,None]; a,b=p.chunk(2,-1); t=torch.einsum("bikc,bjkc->bijc",a,b); return o(no(t))*torch.sigmoid(g(h))
fn("lk_triangle_mult","block",_trimul,rb(.85,2,13,13),(2,13,13,14),layers=lambda:(nn.LayerNorm(14),L(14,40),L(14,14),L(10,14),nn.LayerNorm(10)),train=True)
def _ipa(l,x,r,t):
    p=l(x).unflatten(-1,(6,3)); p=torch.einsum("bnij,bnpj->bnpi",r,p)+t[:,:,None]; d=((p[:,:,None]-p[:,None])**2).sum(-1); return (-.5*d.sum(-1)/6).softmax(-1), torch.sqrt(d+1e-8).mean((1,2))
fn("lk_frame_points","product",_ipa,(2,11,16),(2,11,3,3),(2,11,3),layers=lambda:(L(16,18),),train=True)
def _egnn(e1,e2,cx,hh,h,x):
    n=h.shape[1]; d=x[:,:,None]-x[:,None]; r=(d**2).sum(-1,keepdim=True); z=torch.cat([h[:,:,None].expand(-1,-1,n,-1),h[:,None].expand(-1,n,-1,-1),r],-1); m=F.silu(e2(F.silu(e1(z)))); w=cx(m)*(1-torch.eye(n,device=x.device))[...,None]; return h+hh(torch.cat([h,m.sum(2)],-1)), x+(d/(r.sqrt()+1)*w).sum(2)/(n-1)
fn("lk_egnn","block",_egnn,(2,11,9),(2,11,3),layers=lambda:(L(19,17),L(17,13),L(13,1,False),L(22,9)),train=True)
def _schnet(f1,f2,i1,o,x,p):
    d=((p[:,:,None]-p[:,None])**2).sum(-1).add(1e-9).sqrt(); mu=torch.linspace(0,5,14,device=x.device); g=torch.exp(-10*(d[...,None]-mu)**2); c=.5*(torch.cos(d*math.pi/5)+1)*(d<5); sp=lambda t:F.softplus(t)-math.log(2); W=f2(sp(f1(g)))*c[...,None]; return x+o(sp(torch.einsum("bijd,bjd->bid",W,i1(x))))
fn("lk_schnet_cfconv","block",_schnet,(2,12,15),(2,12,3),layers=lambda:(L(14,15),L(15,15),L(15,15,False),L(15,15)),train=True)
def _topv(l,x,b):
    y=l(x).unflatten(-1,(5,7)); v,k=y.max(-1); z=torch.where(y==v[...,None],y,y.new_tensor(0.)); return z.flatten(-2)*.5+b, v-y.amin(-1), k
fn("lk_maxout_winner","product",_topv,rh(3,17,22),rh(35),layers=lambda:(LB(22,35),),train=True)
fn("lk_group_lse","product",lambda w,x:(lambda y:(torch.logsumexp(y.unflatten(1,(6,-1))*2.5,-1)/2.5-y.unflatten(1,(6,-1)).mean(-1)).mul(x[:,:6]))(x@w),(45,33),layers=lambda:(P(33,42),),train=True)
def _chain3(a,n1,b,n2,c,s,x): h=F.rms_norm(F.silu(a(x)),(37,),n1); h=b(h); h=F.layer_norm(h*h.sigmoid()+h.mean(-1,keepdim=True),(25,),n2,None,1e-6); y=c(h).clamp(-6,6); return x*s+y*(1-s), h.amax(1)
fn("lk_chain_rms_ln_clamp","product",_chain3,rf(4,13,29),layers=lambda:(LH(29,37),(torch.rand(37)+.5).half(),LH(37,25),(torch.rand(25)+.5).half(),LH(25,29),.25))
def _reglu(g,u,d,sc,x,r):
    y=F.relu(g(x))*u(x); z=d(y); z=z*sc.tanh()+r; m=z.float().pow(2).mean(-1,keepdim=True); return (z.float()*torch.rsqrt(m+1e-6)).to(x.dtype), z
fn("lk_reglu_prenorm_next","block",_reglu,rh(3,12,23),rh(3,12,23),layers=lambda:(LB(23,39,False),LB(23,39,False),LB(39,23,False),PH(BF,23)),train=True)
def _highway(ls,x):
    for l in ls: h,t=l(x).chunk(2,-1); t=torch.sigmoid(t-2); x=t*F.selu(h)+(1-t)*x
    return x
fn("lk_highway3","block",_highway,(41,28),layers=lambda:(nn.ModuleList([L(28,56) for _ in range(3)]),),train=True)
def _dense(ls,x):
    hs=[x]
    for l in ls: hs.append(F.elu(l(torch.cat(hs,-1)))*0.5)
    return torch.cat(hs[1:],-1).flip(-1), sum(h.mean(-1) for h in hs)
fn("lk_densemlp","block",_dense,(5,11,14),layers=lambda:(nn.ModuleList([L(14,9),L(23,9),L(32,9)]),),train=True)
def _ae(e,mu,lv,d1,d2,eps,x):
    h=F.leaky_relu(e(x),.2); m=mu(h); s=lv(h).clamp(-8,4); z=m+eps[:x.shape[0]]*torch.exp(.5*s); y=d2(F.leaky_relu(d1(z),.2)); rec=F.binary_cross_entropy_with_logits(y,torch.sigmoid(x*3),reduction="none").sum(-1); kl=-.5*(1+s-m**2-s.exp()).sum(-1); return (rec+.3*kl).mean(), y.sigmoid(), kl
fn("lk_vae_elbo","block",_ae,(35,42),layers=lambda:(L(42,31),L(31,7),L(31,7),L(7,31),L(31,42),torch.randn(50,7)),train=True)
def _gauss(l,y,x):
    o=l(x); pi,mu,ls=o[:,:6].log_softmax(-1),o[:,6:24].view(-1,6,3),o[:,24:].view(-1,6,3).clamp(-4,4); d=(y[:,None]-mu)*torch.exp(-ls); return -torch.logsumexp(pi-(.5*d*d+ls+.919).sum(-1),1).mean(), (pi.exp()[...,None]*mu).sum(1)
fn("lk_mdn","loss",_gauss,(44,3),(44,19),layers=lambda:(L(19,42),),train=True)
def _quant(l,x,y):
    q=l(x); q=torch.cat([q[:,:1],q[:,:1]+F.softplus(q[:,1:]).cumsum(1)],1); t=torch.arange(1,10,device=x.device)/10; e=y[:,None]-q; return torch.maximum(t*e,(t-1)*e).mean(), (e<0).float().mean(0)
fn("lk_pinball_monotone","loss",_quant,(57,16),(57,),layers=lambda:(L(16,9),))
def _qr(l,x,r,a):
    z=l(x).unflatten(1,(4,-1)); q=z[torch.arange(x.shape[0],device=x.device),a]; u=r[:,None,:]-q[:,:,None]; h=torch.where(u.abs()<=1,.5*u*u,u.abs()-.5); tau=(torch.arange(13,device=x.device)+.5)/13; return ((tau[None,:,None]-(u.detach()<0).float()).abs()*h).mean(2).sum(1), z.mean(-1).argmax(1)
fn("lk_quantile_huber","loss",_qr,(19,12),(19,15),ri(4,19),layers=lambda:(L(12,52),),train=True)
def _duel(h,v,a,x,m):
    z=F.relu(h(x)); A=a(z); A=A-(A*m).sum(-1,keepdim=True)/m.sum(-1,keepdim=True).clamp(min=1); q=v(z)+A; return q.masked_fill(~m,-1e8).amax(-1), q
fn("lk_dueling_masked","product",_duel,(33,18),rb(.7,33,9),layers=lambda:(L(18,41),L(41,1),L(41,9)),train=True)
def _ppo(p,v,x,a,olp,adv,ret):
    lg=p(x); lp=lg-lg.logsumexp(-1,keepdim=True); n=lp.gather(1,a[:,None])[:,0]; r=(n-olp).exp(); ad=(adv-adv.mean())/(adv.std()+1e-8); s=torch.min(r*ad,r.clamp(.8,1.2)*ad); ent=-(lp*lp.exp()).sum(-1); return -s.mean()+.5*F.smooth_l1_loss(v(x)[:,0],ret)-.01*ent.mean()
fn("lk_ppo_head","loss",_ppo,(63,15),ri(6,63),(63,),(63,),(63,),layers=lambda:(L(15,6),L(15,1)),train=True)
def _sac(l,e,x):
    m,s=l(x).chunk(2,-1); s=-20+.5*22*(torch.tanh(s)+1)*.5; u=m+s.exp()*e; a=torch.tanh(u); lp=(-.5*((u-m)/s.exp())**2-s-.5*math.log(2*math.pi)-2*(math.log(2)-u-F.softplus(-2*u))).sum(-1,keepdim=True); return a*2.5,lp
fn("lk_sac_squash","product",_sac,(47,7),(47,20),layers=lambda:(L(20,14),),train=True)
def _dpo(w,h,hr,y,yr):
    f=lambda h,y:((h@w.t()).log_softmax(-1).gather(-1,y[...,None])[...,0]*(y!=0)).sum(-1); a,b=f(h,y),f(hr,yr); d=.1*(a-b); return -F.logsigmoid(d)*.95-F.logsigmoid(-d)*.05,(d>0).float()
fn("lk_dpo_pairs","loss",_dpo,rh(4,9,21),rh(4,9,21),ri(75,4,9),ri(75,4,9),layers=lambda:(PH(BF,75,21),),train=True)
def _zoo(l1,l2,x):
    y=l1(x); z=[F.relu6(y[:,0::6]),F.hardtanh(y[:,1::6],-.5,1.5),F.softsign(y[:,2::6]),F.tanhshrink(y[:,3::6]),F.logsigmoid(y[:,4::6]),F.prelu(y[:,5::6],y.new_full((1,),.25))]; return l2(torch.stack(z,-1).flatten(1))
fn("lk_strided_acts","product",_zoo,(39,23),layers=lambda:(L(23,54),L(54,17)),train=True)
def _ccat(l,x):
    y=l(x); a=y[:,1:]-y[:,:-1]; b=y[:,2:]-2*y[:,1:-1]+y[:,:-2]; e=y.unfold(1,3,2).mean(-1); return F.pad(a,(0,0,1,0))*torch.tanh(y), b.abs().mean(1), e*F.relu(e-.1)
fn("lk_time_differences","product",_ccat,(4,19,14),layers=lambda:(L(14,25),),train=True)
def _hopf(m,b,x):
    for _ in range(3): x=F.softmax(b*x@m.t(),-1)@m; x=x/(x.norm(dim=-1,keepdim=True)+1e-6)
    return x, -torch.logsumexp(b*x@m.t(),-1)/b+.5*(x*x).sum(-1)
fn("lk_hopfield3","product",_hopf,(33,21),layers=lambda:(P(45,21,scale=1.),4.),train=True)
def _sink(c,x,y):
    K=F.normalize(x,dim=-1)@F.normalize(y,dim=-1).mT/c; u=torch.zeros_like(K[:,:,0])
    for _ in range(3): v=-(K+u[...,None]).logsumexp(1); u=-(K+v[:,None]).logsumexp(2)
    p=(K+u[...,None]+v[:,None]).exp(); return (p*(1-K*c)).sum((1,2)), p@y
fn("lk_sinkhorn_match","product",_sink,(3,17,11),(3,22,11),layers=lambda:(.2,),train=True)
def _cham(l,x,y):
    x=x+l(x).tanh()*.1; d=(x*x).sum(-1)[...,None]+(y*y).sum(-1)[:,None]-2*torch.bmm(x,y.transpose(1,2)); d=d.clamp(min=0); a,i=d.min(2); b,_=d.min(1); return a.sqrt().mean(1)+b.sqrt().mean(1), y.gather(1,i[...,None].expand(-1,-1,y.shape[2]))-x
fn("lk_chamfer","loss",_cham,(3,35,6),(3,29,6),layers=lambda:(L(6,6),))
def _mmd(x,y):
    z=torch.cat([x,y]); g=z@z.t(); s=g.diagonal(); d=s[:,None]+s-2*g; bw=d.detach().mean(); k=sum(torch.exp(-d/(bw*f)) for f in (.25,.5,1,2,4)); n=x.shape[0]; return k[:n,:n].mean()+k[n:,n:].mean()-2*k[:n,n:].mean()
fn("lk_mmd_multi","loss",_mmd,(31,14),(27,14),train=True)
def _hsic(x,y):
    n=x.shape[0]; H=torch.eye(n,device=x.device)-1/n; a=H@(x@x.t())@H; b=H@(y@y.t())@H; return (a*b).sum()/((a*a).sum().sqrt()*(b*b).sum().sqrt()+1e-9)
fn("lk_cka","loss",_hsic,(34,23),(34,17),train=True)
def _coral(x,y):
    c=lambda t:((t-t.mean(0)).mT@(t-t.mean(0)))/(t.shape[0]-1); d=c(x)-c(y); return (d*d).sum()/(4*x.shape[1]**2)+(x.mean(0)-y.mean(0)).abs().sum(), d.tril(-1)
fn("lk_coral","loss",_coral,(38,22),(51,22),train=True)
def _dino(p,t,c,x,y):
    s=F.normalize(p(x),dim=-1); s=s/.1; q=((t(y)-c)/.04).softmax(-1).detach(); return -(q.unsqueeze(1)*s.unsqueeze(0).log_softmax(-1)).sum(-1).mean(), c*.9+.1*t(y).mean(0)
fn("lk_dino_center","loss",_dino,(13,19),(13,19),layers=lambda:(L(19,31),L(19,31),torch.randn(31)*.1),train=True)
def _byol(l1,g,b,l2,x,t):
    h=l1(x); h=F.relu((h-h.mean(0))/(h.var(0,unbiased=False)+1e-5).sqrt()*g+b); p=l2(h); return 2-2*F.cosine_similarity(p,t.detach(),dim=-1), p.std(0)
fn("lk_byol_predictor","loss",_byol,(36,21),(36,18),layers=lambda:(L(21,40,False),P(40,scale=1.),P(40),L(40,18)),train=True)
# --- batch 5: half types and long pointwise bodies
def _gdn(l,a,dt,x):
    y=l(x); q,k,v,bt,al=y.split((12,12,14,2,2),-1); q=F.normalize(F.silu(q).unflatten(-1,(2,6)),dim=-1); k=F.normalize(F.silu(k).unflatten(-1,(2,6)),dim=-1,eps=1e-6); bt=bt.sigmoid(); g=-a.float().exp()*F.softplus(al.float()+dt); return q*(6**-.5), k*bt[...,None], F.silu(v).unflatten(-1,(2,7))*bt[...,None], g.cumsum(1).exp().to(x.dtype)
fn("lk_delta_proj_split","product",_gdn,rh(3,15,26),layers=lambda:(LB(26,42,False),P(2),P(2)),train=True)
def _mla(qa,n1,qb,kva,n2,kvb,c,s,x):
    q=qb(F.rms_norm(qa(x),(13,),n1)).unflatten(-1,(3,14)); kv=kva(x); ck,kr=kv[...,:11],kv[...,11:]; kn=kvb(F.rms_norm(ck,(11,),n2)).unflatten(-1,(3,17)); rot=lambda t:torch.stack([-t[...,1::2],t[...,::2]],-1).flatten(-2); qr=q[...,8:]*c+rot(q[...,8:])*s; kr=kr[:,:,None]*c+rot(kr[:,:,None])*s
    return torch.cat([q[...,:8],qr],-1).transpose(1,2), torch.cat([kn[...,:8],kr.expand(-1,-1,3,-1)],-1).transpose(1,2), kn[...,8:]
fn("lk_latent_qkv_rope","product",_mla,rh(2,11,25),layers=lambda:(LB(25,13),PH(BF,13),LB(13,42),LB(25,17),PH(BF,11),LB(11,51),torch.rand(11,1,6).bfloat16(),torch.rand(11,1,6).bfloat16()),train=True)
def _rwkv(mk,mr,mv,k,r,v,x):
    xx=F.pad(x,(0,0,1,0))[:,:-1]-x; a=k(x+xx*mk); b=r(x+xx*mr); h=torch.relu(a).square(); return torch.sigmoid(b)*v(h), (x+xx*mv)[:,-1]
fn("lk_channel_mix_shift","product",_rwkv,rh(3,14,23),layers=lambda:(PH(BF,23),PH(BF,23),PH(BF,23),LB(23,37,False),LB(23,23,False),LB(37,23,False)),train=True)
def _ddl(mx,w1,w2,mm,x):
    xx=F.pad(x,(0,0,1,-1))-x; z=torch.tanh((x+xx*mx)@w1).unflatten(-1,(3,5)); z=torch.einsum("btcr,crd->cbtd",z,w2); a,b,c=(x+xx*(mm[:,None,None]+z)).unbind(0); return a*torch.sigmoid(b), torch.exp(-torch.exp(c.float()*.5-.6)).to(x.dtype)
fn("lk_data_dependent_lerp","product",_ddl,rh(3,13,18),layers=lambda:(PH(BF,18),PH(BF,18,15),PH(BF,3,5,18),PH(BF,3,18)),train=True)
def _geg(l1,l2,g,x):
    y=l1(x); h=F.gelu(y[...,0::2])*torch.clamp(y[...,1::2],-7,7).add(1); h=h*torch.sigmoid(1.702*y[...,::2]); o=l2(h)*g; return o+x, o.float().abs().amax()
fn("lk_interleaved_clamped_glu","block",_geg,rf(3,11,26),layers=lambda:(LH(26,62),LH(31,26),torch.rand(26).half()),train=True)
def _rout(w,b,x):
    s=torch.sigmoid((x.float()@w.t())); c=s+b; g=c.unflatten(-1,(3,4)).amax(-1); gm=(g>=g.sort(-1).values[...,1:2] if False else g>=g.mean(-1,keepdim=True)); p=torch.where(gm.repeat_interleave(4,-1),s,0.); p=p/(p.sum(-1,keepdim=True)+1e-20)*2.5; f=(p>0).float().mean(0); return p.to(x.dtype), (f*s.mean(0)).sum()*12, torch.logsumexp(x.float()@w.t(),-1).square().mean()
fn("lk_group_router_aux","product",_rout,rh(57,21),layers=lambda:(P(12,21),P(12)),train=True)
def _expc(w1,w3,w2,p,x):
    h=torch.einsum("ecd,edf->ecf",x,w1); h=F.silu(h.float()).to(x.dtype)*torch.bmm(x,w3); y=torch.bmm(h,w2); return (y*p[...,None]).float().sum(0), h.abs().amax(-1)
fn("lk_experts_weighted_sum","product",_expc,lambda:torch.rand(3,14).bfloat16(),rh(3,14,17),layers=lambda:(PH(BF,3,17,26),PH(BF,3,17,26),PH(BF,3,26,17)),train=True)
def _medu(e,ls,w,h,i):
    o=[]
    for k,l in enumerate(ls): h=h+F.silu(l(torch.cat([h,e(i.roll(-k,1))],-1))); o.append((h@w.t()).amax(-1))
    return torch.stack(o,1), h
fn("lk_multi_token_heads","block",_medu,rh(3,9,16),ri(55,3,9),layers=lambda:(E(55,16,dt=BF),nn.ModuleList([LB(32,16) for _ in range(2)]),PH(BF,55,16)),train=True)
def _tied(e,n,b,i,y):
    h=F.layer_norm(e(i)*4.25,(22,),n); lg=F.linear(h,e.weight,b); lp=torch.log_softmax(lg.float(),-1); p=lp.exp(); return -(lp.gather(-1,y[...,None]).squeeze(-1)*(y!=1)).mean(), -(p*lp).sum(-1), (lg.argmax(-1)==y)
fn("lk_tied_embedding_entropy","loss",_tied,ri(63,4,13),ri(63,4,13),layers=lambda:(E(63,22,dt=BF),PH(BF,22),PH(BF,63)),train=True)
def _adapt(hd,t1,t2,h,y):
    a=hd(h).log_softmax(-1); b=t2(t1(h)).log_softmax(-1); inh=y<20; ta=a.gather(1,torch.where(inh,y,20)[:,None])[:,0]; tb=b.gather(1,(y-20).clamp(min=0)[:,None])[:,0]; return -(ta+torch.where(inh,0.,tb)).mean()
fn("lk_adaptive_softmax2","loss",_adapt,(43,24),ri(65,43),layers=lambda:(L(24,21),L(24,9,False),L(9,45)),train=True)
def _hs(e,h,code,path,m):
    s=(e(path)*h[:,None]).sum(-1); return (F.softplus((1-2*code.float())*s)*m).sum(1)/m.sum(1).clamp(min=1)
fn("lk_hierarchical_softmax","loss",_hs,(29,19),ri(2,29,7),ri(60,29,7),rb(.8,29,7),layers=lambda:(E(60,19),),train=True)
def _sgns(u,v,c,o,n): 
    h=u(c); p=torch.einsum("bd,bkd->bk",h,v(o)); q=torch.einsum("bd,bnd->bn",h,v(n).neg()); return -(F.logsigmoid(p).mean(1)+F.logsigmoid(q).sum(1)).mean()+1e-3*(h.norm(dim=1)-1).square().mean()
fn("lk_skipgram_negative","loss",_sgns,ri(80,35),ri(80,35,4),ri(80,35,9),layers=lambda:(E(80,21),E(80,21)),train=True)
def _glove(u,v,a,b,i,j,x): w=(x/30).pow(.75).clamp(max=1); d=(u(i)*v(j)).sum(-1)+a(i).squeeze(-1)+b(j).squeeze(-1)-x.log(); return (w*d*d).mean(), w
fn("lk_glove","loss",_glove,ri(70,57),ri(70,57),lambda:torch.rand(57)*50+1,layers=lambda:(E(70,17),E(70,17),E(70,1),E(70,1)))
def _kge(e,r,h,t,k):
    a,b=e(h).chunk(2,-1); c,d=e(t).chunk(2,-1); p=r(k)*(math.pi/.5); re,im=p.cos(),p.sin(); x=a*re-b*im-c; y=a*im+b*re-d; s=9-torch.stack([x,y]).norm(dim=0).sum(-1); n=9-torch.hypot(a*re-b*im-c.roll(1,0),a*im+b*re-d.roll(1,0)).sum(-1); return -F.logsigmoid(s)-F.logsigmoid(-n)
fn("lk_rotate_kge","loss",_kge,ri(60,41),ri(60,41),ri(8,41),layers=lambda:(E(60,22),E(8,11)),train=True)
def _complex(e,r,bn,h,k):
    x=e(h); y=r(k); a,b=x[:,:13],x[:,13:]; c,d=y[:,:13],y[:,13:]; q=torch.cat([a*c-b*d,a*d+b*c],1); q=(q-q.mean(0))*torch.rsqrt(q.var(0)+1e-5)*bn; s=q@e.weight.t(); return s.sigmoid(), (q.abs()**3).sum()/q.shape[0]
fn("lk_complex_all_entities","product",_complex,ri(65,33),ri(9,33),layers=lambda:(E(65,26),E(9,26),P(26,scale=1.)),train=True)
def _quat(w,b,x):
    r,i,j,k=w.unbind(0); W=torch.cat([torch.cat([r,-i,-j,-k],1),torch.cat([i,r,-k,j],1),torch.cat([j,k,r,-i],1),torch.cat([k,-j,i,r],1)],0); y=F.linear(x,W,b); z=y.unflatten(-1,(4,-1)); return (z/(z.square().sum(1,keepdim=True)+1e-6).sqrt()).flatten(1)*torch.sigmoid(y)
fn("lk_quaternion_linear","product",_quat,(37,28),layers=lambda:(P(4,9,7),P(36)),train=True)
def _cplx(wr,wi,b,x):
    xr,xi=x[...,0],x[...,1]; k1=(xr+xi)@wr; yr=k1-xi@(wr+wi); yi=k1+xr@(wi-wr); m=torch.sqrt(yr*yr+yi*yi+1e-8); s=F.relu(m+b)/m; return torch.stack([yr*s,yi*s],-1), torch.atan2(yi,yr)
fn("lk_complex_modrelu","product",_cplx,(33,19,2),layers=lambda:(P(19,27),P(19,27),P(27)),train=True)
def _poin(z,r,x):
    x=x*(1-1e-3)/(1+x.norm(dim=-1,keepdim=True)); lam=2/(1-(x*x).sum(-1,keepdim=True)).clamp(min=1e-4); zn=z.norm(dim=0).clamp(min=1e-6); a=lam*(x@z)/zn*torch.cosh(2*r)-(lam-1)*torch.sinh(2*r); y=torch.sinh(2*zn*torch.asinh(a)*.3); return y/(1+torch.sqrt(1+(y*y).sum(-1,keepdim=True)))
fn("lk_poincare_mlr_fc","product",_poin,(29,17),layers=lambda:(P(17,13),P(13)),train=True)
def _lor(x,y):
    t=lambda v:torch.sqrt(1+(v*v).sum(-1,keepdim=True)); ip=t(x)@t(y).mT-x@y.mT; d=torch.acosh(ip.clamp(min=1+1e-6)); return torch.softmax(-d,-1)@y, (d*d).mean(1)
fn("lk_lorentz_dist","product",_lor,(3,18,13),(3,25,13),train=True)
def _crossln(g,b,w,x,y):
    s=torch.einsum("bnd,bmd->bnm",x/(x.norm(2,-1,True)+1e-5),y/(y.norm(2,-1,True)+1e-5)); a=s.relu(); r=a/(a.sum(2,keepdim=True)+1e-8); c=a/(a.sum(1,keepdim=True)+1e-8); u=r@y; v=c.mT@x; return F.layer_norm(torch.cat([x,u,x-u,x*u],-1),(4*x.shape[-1],),g,b)@w, v.amax(1)-y.mean(1)
fn("lk_cross_match_features","product",_crossln,(2,15,11),(2,19,11),layers=lambda:(P(44,scale=1.),P(44),P(44,13)),train=True)
def _colb(l,q,d,m):
    q=F.normalize(l(q),dim=-1); d=F.normalize(l(d),dim=-1); s=torch.einsum("aqd,bkd->abqk",q,d).masked_fill(~m[None,:,None],-1e4); s=s.amax(-1).sum(-1)/.5; return F.cross_entropy(s.float(),torch.arange(s.shape[0],device=s.device)), s
fn("lk_late_interaction","loss",_colb,rh(5,7,18),rh(5,13,18),lambda:torch.rand(5,13)<.85,layers=lambda:(LB(18,11,False),),train=True)
def _splade(w,b,h,m):
    y=torch.log1p(F.relu(h@w.mT+b))*m[...,None]; v=y.amax(1); return v@v.t(), v.mean(0).square().sum()+1e-3*v.abs().sum(1).mean()
fn("lk_splade_flops","product",_splade,rf(5,11,17),lambda:(torch.rand(5,11)<.8).half(),layers=lambda:(PH(HF,83,17),PH(HF,83)),train=True)
def _matry(w,x,y):
    l=0.
    for k,d in enumerate((5,12,26)): l=l+(k+1)/6*F.cross_entropy(F.normalize(x[:,:d])@F.normalize(w[:,:d]).t()*12,y,label_smoothing=.1)
    return l
fn("lk_matryoshka_ce","loss",_matry,(31,26),ri(17,31),layers=lambda:(P(17,26),),train=True)
def _poly1(l,x,y,w): lg=l(x); lp=lg.log_softmax(1); t=lp.gather(1,y[:,None])[:,0]; return ((-t+2.*(1-t.exp())).mul(w[y])).sum()/w[y].sum(), (lg.amax(1)-lg.mean(1)).square()
fn("lk_poly1_weighted","loss",_poly1,(52,21),ri(14,52),lambda:torch.rand(14)+.1,layers=lambda:(L(21,14),),train=True)
def _dice(l,x,y,m):
    p=torch.sigmoid(l(x)).transpose(1,2); y=F.one_hot(y,5).transpose(1,2).to(p.dtype); p=p*m[:,None]; tp=(p*y).sum(2); fp=(p*(1-y)).sum(2); fnn=((1-p)*y).sum(2); return (1-(tp+1)/(tp+.3*fp+.7*fnn+1)).clamp(min=1e-6).pow(.75).mean()
fn("lk_focal_tversky_tokens","loss",_dice,(3,31,18),ri(5,3,31),ru(3,31),layers=lambda:(L(18,5),),train=True)
def _ord(w,c,x,y):
    s=(x@w).squeeze(-1); t=torch.cumsum(torch.cat([c[:1],F.softplus(c[1:])]),0); cdf=torch.sigmoid(t-s[:,None]); p=torch.diff(F.pad(F.pad(cdf,(0,1),value=1.),(1,0)),dim=1).clamp(min=1e-7); return -p.log().gather(1,y[:,None]).mean(), (p*torch.arange(7,device=x.device)).sum(1)
fn("lk_ordinal_cutpoints","loss",_ord,(61,18),ri(7,61),layers=lambda:(P(18,1),P(6)),train=True)
def _cox(l1,l2,x,ev):
    r=l2(F.selu(l1(x)))[:,0]; lc=torch.logcumsumexp(r,0) if False else torch.log(torch.cumsum((r-r.max().detach()).exp(),0)+1e-9)+r.max().detach(); return -((r-lc)*ev).sum()/ev.sum().clamp(min=1)
fn("lk_cox_partial","loss",_cox,(56,17),lambda:(torch.rand(56)<.6).float(),layers=lambda:(L(17,25),L(25,1)),train=True)
def _crf(l,tr,x,m):
    e=l(x); a=e[:,0]
    for t in range(1,4): n=torch.logsumexp(a[:,:,None]+tr[None],1)+e[:,t]; a=torch.where(m[:,t,None],n,a)
    return a.logsumexp(1), e.amax(-1).sum(1)
fn("lk_crf_forward4","product",_crf,(15,4,22),rb(.8,15,4),layers=lambda:(L(22,9),P(9,9)),train=True)
def _ncp(l,tau,x,h):
    for t in range(2): f=torch.sigmoid(l(torch.cat([x[:,t],h],-1))); g,a=f.chunk(2,-1); h=(h+.25*g*(2*a-1))/(1+.25*(F.softplus(tau)+g))
    return h
fn("lk_liquid_step","block",_ncp,(23,2,13),(23,21),layers=lambda:(L(34,42),P(21)),train=True)
def _lnlstm(wx,wh,g1,g2,c,x,h0,c0):
    z=F.layer_norm(wx(x),(68,),g1)+F.layer_norm(wh(h0),(68,),g2); i,f,g,o=z.view(-1,4,17).unbind(1); cc=torch.sigmoid(f+1)*c0+torch.sigmoid(i)*torch.tanh(g); return torch.sigmoid(o)*torch.tanh(F.layer_norm(cc,(17,),c)),cc,z.std(-1)
fn("lk_ln_lstm_cell","block",_lnlstm,(31,19),(31,17),(31,17),layers=lambda:(L(19,68),L(17,68,False),P(68,scale=1.),P(68,scale=1.),P(17,scale=1.)),train=True)
# --- batch 6
fn("lk_transposed_leaf_quad","product",lambda w,x,y:(lambda p:torch.where(p.abs()>.5,p.abs()-.25,p*p)*y.mT-p.mean(1,keepdim=True))(w@x.mT),(3,23,17),(3,23,19),layers=lambda:(P(19,17),),train=True)
fn("lk_batched_mv_softsel","product",lambda w,x,v:(lambda s:(torch.softmax(s*2.5,1)*s).sum(1)-s.std(1)*F.silu(v[:,0]))(torch.matmul(x*w,v.unsqueeze(-1)).squeeze(-1)),rh(13,27,18),rh(13,18),layers=lambda:(PH(BF,18),),train=True)
fn("lk_tall_skinny_stats","product",lambda w,x:(lambda y:(y.amax(0),y.argmin(0),(y-y.mean(0)).pow(3).mean(0)/y.var(0).pow(1.5).clamp(min=1e-4),torch.sigmoid(y[::3])))(F.elu(x@w)),(251,13),layers=lambda:(P(13,5,scale=.6),),train=True)
fn("lk_five_axis_patch","product",lambda l,n,x:(lambda p:l(F.layer_norm(p,p.shape[-1:],n)).permute(0,3,1,2)*p.mean(-1)[:,None].sigmoid())(x.view(2,3,5,4,7,4).permute(0,2,4,1,3,5).flatten(3)),(2,3,20,28),layers=lambda:(L(48,13),P(48,scale=1.)),train=True)
def _win(l,b,x):
    h=x.roll((-2,-1),(1,2)).unfold(1,4,4).unfold(2,3,3).permute(0,1,2,4,5,3).flatten(3,4); q,k,v=l(h).chunk(3,-1); a=(q@k.mT*.3+b).softmax(-1); o=(a@v).unflatten(3,(4,3)).permute(0,1,3,2,4,5).reshape(x.shape[0],x.shape[1],x.shape[2],-1); return o.roll((2,1),(1,2))+x[...,:o.shape[-1]]
fn("lk_shifted_window_rect","block",_win,rh(2,8,9,15),layers=lambda:(LB(15,39),PH(BF,12,12)),train=True)
def _merge(n,l,x): h=torch.cat([x[:,0::2,0::2],x[:,1::2,0::2],x[:,0::2,1::2],x[:,1::2,1::2]],-1); y=l(n(h)); return F.gelu(y)+F.avg_pool2d(x.permute(0,3,1,2),2).permute(0,2,3,1).repeat(1,1,1,2)
fn("lk_patch_merge_skip","block",_merge,rf(2,10,14,9),layers=lambda:(nn.LayerNorm(36,dtype=HF),LH(36,18,False)),train=True)
def _ff(wa,wb,x):
    for _ in range(2): h=x/(x.norm(2,1,keepdim=True)+1e-4); x=F.relu(h@wa.t()+wb)
    g=x.pow(2).mean(1); return torch.log1p(torch.exp(-g+2)).mean(),torch.log1p(torch.exp(g-2)).mean()
fn("lk_forward_forward","loss",_ff,(47,29),layers=lambda:(P(29,29),P(29)),train=True)
def _spec(w,u,b,x):
    v=F.normalize(w.t()@u,dim=0,eps=1e-12).detach(); u=F.normalize(w@v,dim=0,eps=1e-12).detach(); s=torch.dot(u,w@v); return F.leaky_relu(F.linear(x,w/s,b),.1), F.relu(1-x@v), F.relu(1+x@v).mean()
fn("lk_spectral_norm_hinge","product",_spec,(38,27),layers=lambda:(P(33,27),torch.randn(33),P(33)),train=True)
def _house(v,d,x):
    for k in range(3): u=v[k]/(v[k].norm()+1e-6); x=x-2*(x@u)[...,None]*u
    return x*torch.exp(d)+F.softplus(x).flip(-1), d.sum()
fn("lk_householder3","product",_house,(5,13,22),layers=lambda:(P(3,22),P(22)),train=True)
def _oft(r,w,s,x):
    a=r-r.mT; I=torch.eye(r.shape[-1],device=x.device); q=(I+a)@(I+a+a@a+a@a@a); h=torch.einsum("btgi,gij->btgj",x.unflatten(-1,(r.shape[0],-1)),q).flatten(2); return (h@w.t())*s+x.mean(-1,keepdim=True)
fn("lk_block_orthogonal_ft","product",_oft,(3,14,28),layers=lambda:(P(4,7,7,scale=.05),P(31,28),P(31,scale=1.)),train=True)
def _vera(w,a,b,d,bb,x): h=(x@a.t())*d; y=x@w.t()+(h@b.t())*bb; u,g=y[...,:17],y[...,17:]; return u*F.hardsigmoid(g)+h.abs().sum(-1,keepdim=True)*1e-2
fn("lk_vera_hardgate","product",_vera,rf(3,12,23),layers=lambda:(PH(HF,34,23),torch.randn(9,23).half()*.2,torch.randn(34,9).half()*.2,PH(HF,9),PH(HF,34)),train=True)
def _ia3(l1,l2,l3,k,v,f,x): a,b=l1(x)*k,l2(x)*v; s=(a*b).unflatten(-1,(4,-1)).sum(-1); h=F.gelu(l3(torch.cat([a,b],-1))*f); return h.unflatten(-1,(4,-1))*s.softmax(-1)[...,None]
fn("lk_ia3_heads","product",_ia3,rh(4,9,19),layers=lambda:(LB(19,20),LB(19,20),LB(40,36),PH(BF,20),PH(BF,20),PH(BF,36)),train=True)
def _bott(ad,au,sc,g,b,x,r): h=F.layer_norm(x+r,(26,),g,b); z=F.linear(h,ad); z=z*torch.tanh(F.softplus(z.float())).to(z.dtype); y=F.linear(z,au)*sc; return y+h,x+r,z.mean(1)
fn("lk_bottleneck_adapter","block",_bott,rh(5,11,26),rh(5,11,26),layers=lambda:(PH(BF,7,26),PH(BF,26,7),PH(BF,1),PH(BF,26),PH(BF,26)),train=True)
def _hashlin(v,sgn,idx,b,x): w=v[idx]*sgn; y=x@w.t()+b; return torch.maximum(y,y.roll(1,-1))-torch.minimum(y,torch.zeros_like(y))*1/3
fn("lk_hashed_weights","product",_hashlin,(41,34),layers=lambda:(P(97),torch.randint(0,2,(29,34))*2.-1,(torch.arange(29)[:,None]*31+torch.arange(34)*17)%97,P(29)),train=True)
def _hank(h,x): n=x.shape[-1]; i=(torch.arange(21,device=x.device)[:,None]+torch.arange(n,device=x.device)).clamp(max=h.shape[0]-1); y=torch.einsum("bcn,mn->bcm",x,h[i]*torch.cos(i*.3)); return y.cumsum(-1)/(torch.arange(21,device=x.device)+1)+y.square()
fn("lk_hankel_cummean","product",_hank,(4,7,26),layers=lambda:(P(40),),train=True)
def _nm(w,b,x):
    g=w.unflatten(1,(-1,4)); a=g.abs(); r=(a[...,:,None]<a[...,None,:]).sum(-1); m=(r<2).to(w.dtype); wk=(g*m).flatten(1); y=F.linear(x,w+(wk-w).detach(),b); return y*torch.sigmoid(y.mean(-1,keepdim=True)), ((1-m)*g).pow(2).sum()*2e-4
fn("lk_two_of_four_sparse","product",_nm,(37,36),layers=lambda:(P(27,36),P(27)),train=True)
def _mx(x,w):
    f=lambda t:(lambda g:(lambda s:((g/s)*4).round().clamp(-24,24)/4*s)(torch.exp2(torch.floor(torch.log2(g.abs().amax(-1,keepdim=True).clamp(min=1e-20)))-2)))(t.float().unflatten(-1,(-1,8))).flatten(-2).to(t.dtype); y=f(x)@f(w).t(); return F.relu(y)*y.amax(-1,keepdim=True)
fn("lk_shared_exponent_blocks","product",_mx,rh(21,40),rh(35,40))
def _kvq(q,kq,ks,kz,vq,vs,ln):
    k=(kq.to(q.dtype)-kz)*ks; v=vq.to(q.dtype)*vs; s=torch.einsum("bhd,bthd->bht",q,k)*(q.shape[-1]**-.5); m=torch.arange(k.shape[1],device=q.device)[None]<ln[:,None]; p=s.float().masked_fill(~m[:,None],float("-inf")).softmax(-1).to(q.dtype); return torch.einsum("bht,bthd->bhd",p,v), p.float().amax(-1)
fn("lk_int8_kv_decode","product",_kvq,rf(5,3,14),lambda:torch.randint(0,255,(5,22,3,14),dtype=torch.uint8),lambda:torch.rand(5,22,3,1).half()*.02,lambda:torch.rand(5,22,3,1).half()*128,lambda:torch.randint(-127,127,(5,22,3,14),dtype=torch.int8),lambda:torch.rand(5,22,3,1).half()*.01,lambda:torch.randint(1,23,(5,)))
def _h3(l,a,c,x): y=l(x); q,k,v=y[:,:,0::3],y[:,:,1::3],y[:,:,2::3]; t=torch.arange(x.shape[1],device=x.device); d=(t[:,None]-t).clamp(min=0); K=(torch.exp(-F.softplus(a)*d[...,None])*torch.cos(c*d[...,None])*(t[:,None]>=t)[...,None]); return q*torch.einsum("std,btd->bsd",K,k*v)
fn("lk_hyena_explicit","product",_h3,(3,17,14),layers=lambda:(L(14,33),P(11),P(11,scale=1.)),train=True)
def _ret(l,g,o,x):
    q,k,v,z=l(x).unflatten(-1,(4,3,-1)).permute(2,0,3,1,4); n=x.shape[1]; t=torch.arange(n,device=x.device); D=torch.where(t[:,None]>=t,(1-2**(-5.-torch.arange(3,device=x.device)))[:,None,None]**(t[:,None]-t).clamp(min=0),0.).to(x.dtype); D=D/D.sum(-1,keepdim=True).sqrt(); s=q@k.mT*D*.35; s=s/s.detach().abs().sum(-1,keepdim=True).clamp(min=1); y=F.rms_norm(s@v,(8,),g)*F.silu(z); return o(y.transpose(1,2).flatten(2))
fn("lk_retention_parallel","block",_ret,rh(2,13,21),layers=lambda:(LB(21,96,False),PH(BF,8),LB(24,21,False)),train=True)
def _cone(e,l,i,j): u,v=e(i),e(j); lo=torch.maximum(u[...,:9],v[...,:9]); hi=torch.minimum(u[...,:9]+F.softplus(u[...,9:]),v[...,:9]+F.softplus(v[...,9:])); vi=F.softplus((hi-lo)*5,beta=1).div(5).add(1e-20).log().sum(-1); vu=F.softplus(F.softplus(u[...,9:])*5).div(5).log().sum(-1); return (vi-vu).clamp(max=-1e-6).exp(), l(torch.cat([lo,hi],-1))
fn("lk_box_embedding","product",_cone,ri(44,37),ri(44,37),layers=lambda:(E(44,18),L(18,5)),train=True)
def _gemb(mu,sg,l,i): m,s=mu[i],F.softplus(sg[i])+1e-3; kl=.5*((s[:,:,None]/s[:,None]).sum(-1)+((m[:,:,None]-m[:,None])**2/s[:,None]).sum(-1)-m.shape[-1]+(s.log().sum(-1)[:,None]-s.log().sum(-1)[:,:,None])); return (-kl).softmax(-1)@l(m), kl.mean((1,2))
fn("lk_gaussian_embed_kl","product",_gemb,ri(39,4,13),layers=lambda:(P(39,10),P(39,10),L(10,17)),train=True)
def _hgrid(t,l1,l2,x):
    o=[]
    for k,r in enumerate((5,9,16)):
        p=x*r; f=p.floor(); w=p-f; f=f.long(); a=0.
        for c in range(4):
            dx,dy=c&1,c>>1; h=((f[:,0]+dx)*1^(f[:,1]+dy)*2654435761)%64; a=a+t[k][h]*((w[:,0] if dx else 1-w[:,0])*(w[:,1] if dy else 1-w[:,1]))[:,None]
        o.append(a)
    return torch.sigmoid(l2(F.relu(l1(torch.cat(o,-1)))))
fn("lk_hash_grid_bilinear","product",_hgrid,ru(150,2),layers=lambda:(P(3,64,4),L(12,31),L(31,3)),train=False)
def _triplane(pl,l,x): 
    n=pl.shape[-2]; u=((x+1)*.5*(n-1)).clamp(0,n-1.001); f=u.floor().long(); w=u-f; g=lambda k,a,b:(pl[k][f[:,a],f[:,b]]*(1-w[:,a:a+1])+pl[k][f[:,a]+1,f[:,b]]*w[:,a:a+1])*(1-w[:,b:b+1])+pl[k][f[:,a],f[:,b]+1]*w[:,b:b+1]; h=g(0,0,1)*g(1,0,2)+g(2,1,2); y=l(h); return F.softplus(y[:,:1]-1),y[:,1:].sigmoid()
fn("lk_triplane_lookup","product",_triplane,lambda:torch.rand(140,3)*2-1,layers=lambda:(P(3,12,12,9),L(9,4)))
def _lut(t,l,x): i=((x.clamp(-4,4)+4)*7.5).floor().long().clamp(max=59); f=(x.clamp(-4,4)+4)*7.5-i; y=t[i]*(1-f)+t[i+1]*f; return l(y)+torch.where(x.abs()>4,x,0.).sum(-1,keepdim=True)
fn("lk_activation_lut","product",_lut,(35,24),layers=lambda:(P(62),L(24,19)),train=True)
def _nalu(wh,mh,g,x): W=torch.tanh(wh)*torch.sigmoid(mh); a=x@W; m=torch.exp(torch.log(x.abs()+1e-7)@W); s=torch.sigmoid(x@g); return s*a+(1-s)*m.clamp(max=50), W.abs().mean(0)
fn("lk_nalu","product",_nalu,(44,17),layers=lambda:(P(17,13),P(17,13),P(17,13)),train=True)
def _cln(l,a,b,x): y=l(x); m,v=y.mean((0,1)),y.var((0,1),unbiased=False); bn=(y-m)/torch.sqrt(v+1e-3); g=F.gelu(bn[...,1::2]*a+b); return g*bn[...,0::2].tanh(), m*.1+.9*b.repeat(2), (v*y.shape[0]*y.shape[1]/(y.shape[0]*y.shape[1]-1)).detach()
fn("lk_batchnorm_running_pair","norm",_cln,(6,13,21),layers=lambda:(L(21,34),P(17,scale=1.),P(17)),train=True)
def _dib(l1,l2,al,x): h=l1(x); h=al*torch.sin(h).square()/(al.abs()+1e-4)+h; y=l2(h); n=y.shape[-1]//3; a,b,c=y[...,:n],y[...,n:2*n],y[...,2*n:]; cr=torch.stack([a[...,1:]*b[...,:-1]-a[...,:-1]*b[...,1:],b[...,1:]*c[...,:-1]-b[...,:-1]*c[...,1:]]); return cr.norm(dim=0), (a*b*c).logsumexp(1)
fn("lk_snake_cross","product",_dib,rf(4,12,17),layers=lambda:(LH(17,25),LH(25,33),PH(HF,25)),train=True)
# --- some of the above in half types, in place
def half(make,dt):
    def mk():
        m,xs=make(); m=m.to(dt); m.items=tuple(t.to(dt) if isinstance(t,Tensor) and not isinstance(t,nn.Parameter) and t.is_floating_point() else t for t in m.items)
        return m,tuple(x.detach().to(dt).requires_grad_(x.requires_grad) if x.is_floating_point() else x for x in xs)
    return mk
_bf="hash2_sum_ln pad_stats crossed_cats nf4_table dora_gelu kron_swish three_mix focal_multi biaffine_parser low_rank_bilinear rbf_normalised gat_heads sage_mean_max gmlp_causal vip_axial nerf_skip deepset_equiv dlrm mmoe soft_moe monarch_shuffle ft_tokenizer_cls autoint bpr_negatives einsum5_gate triangle_mult highway3 strided_acts dino_center ln_lstm_cell hopfield3".split()
_hf="factorised_glu label_smooth_conf gatv2_edges s2mlp_shift hypernet_lowrank outer_product_mean time_differences group_lse dcn_v1_vectors cross_match_features".split()
_dt={**{"lk_"+n:BF for n in _bf},**{"lk_"+n:HF for n in _hf}}
assert set(_dt)<={m[0] for m in M}
M[:]=[(n,l,t,half(k,_dt[n]) if n in _dt else k) for n,l,t,k in M]
