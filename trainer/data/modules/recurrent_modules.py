"""Recurrence, gates and attention written by hand."""
from written_base import *
L=nn.Linear
def A(name,label,f,ins,layers=lambda:(),train=True):
    fn("rc_"+name,label,f,*ins,layers=layers,train=train)
sg=torch.sigmoid; th=torch.tanh
def rms(x,e=1e-6,d=-1): return x*torch.rsqrt(x.pow(2).mean(d,keepdim=True)+e)
# ---- recurrent cells
def gru_reset_after(wx,wh,x,h):
    r,z,n=wx(x).chunk(3,-1); hr,hz,hn=wh(h).chunk(3,-1)
    u=sg(z+hz); c=th(n+sg(r+hr)*hn); return (1-u)*c+u*h
A("gru_after","product",gru_reset_after,[(37,22),(37,29)],lambda:(L(22,87),L(29,87,bias=False)))
def gru_last_gate_first(w,x,h):
    g=w(torch.cat([x,h],-1)); d=h.size(-1)
    z=F.hardsigmoid(g[...,2*d:]); r=sg(g[:,:d]+1.0); c=F.softsign(g[:,d:2*d]*r-0.1*h)
    return h+z*(c-h),z.mean(-1)
A("gru_slices","product",gru_last_gate_first,[(26,15),(26,34)],lambda:(L(49,102),))
def lstm_unroll3(wx,wh,x,h,c):
    xs=wx(x); outs=[]
    for t in range(3):
        i,g,f,o=(xs[:,t]+wh(h)).chunk(4,-1)
        c=sg(f+1)*c+sg(i)*th(g); h=sg(o)*th(c); outs.append(h)
    return torch.stack(outs,1),c
A("lstm_unroll3","product",lstm_unroll3,[(11,3,14),(11,18),(11,18)],lambda:(L(14,72),L(18,72,bias=False)))
def peephole(w,pi,pf,po,x,c):
    g=w(x); d=c.shape[1]
    f=sg(g[:,d:2*d]+pf*c); i=sg(g[:,3*d:]+pi*c); cn=f*c+i*th(g[:,:d]); o=sg(g[:,2*d:3*d]+po*cn)
    return o*th(cn),cn.clamp(-3,3)
A("peephole_shuffled","product",peephole,[(43,20),(43,27)],lambda:(L(20,108),P(27),P(27),P(1,27)))
def coupled(w,ln,x,c):
    f,o,g=ln(w(x)).split([33,33,33],1); f=sg(f); c2=f*c+(1-f)*F.gelu(g); return (o.sigmoid()*c2.tanh(),c2)
A("coupled_ln","product",coupled,[(21,46),(21,33)],lambda:(L(46,99),nn.LayerNorm(99)))
def lnlstm(wx,wh,l1,l2,l3,x,h,c):
    g=l1(wx(x))+l2(wh(h)); i,f,o,u=torch.split(g,23,-1); c=l3(sg(f-.5)*c+sg(i)*u.tanh()); return sg(o)*c.tanh(),c
A("lnlstm","product",lnlstm,[(31,17),(31,23),(31,23)],lambda:(L(17,92,bias=False),L(23,92,bias=False),nn.LayerNorm(92),nn.LayerNorm(92),nn.LayerNorm(23)))
def mgu(wf,wc,x,h):
    f=sg(wf(torch.cat((h,x),1))); c=th(wc(torch.cat((f*h,x),1))); return torch.lerp(h,c,f)
A("mgu","product",mgu,[(52,13),(52,21)],lambda:(L(34,21),L(34,21)))
def sru(w,v,b,x,c):
    y=w(x); xt,f,r=y.unflatten(-1,(3,-1)).unbind(-2); hs=[]
    for t in range(4):
        ft=sg(f[t]+v[0]*c+b[0]); rt=sg(r[t]+v[1]*c+b[1]); c=ft*c+(1-ft)*xt[t]; hs.append(rt*c+(1-rt)*x[t]*1.25)
    return torch.stack(hs),c
A("sru4","scan",sru,[(4,9,26),(9,26)],lambda:(L(26,78,bias=False),P(2,26),P(2,26)))
def qrnn(cv,x,c):
    z,f,o,i=cv(F.pad(x,(1,0))).chunk(4,1); z=z.tanh(); f=f.sigmoid(); o=o.sigmoid(); i=i.sigmoid(); r=[]
    for t in range(5): c=f[:,:,t]*c+i[:,:,t]*z[:,:,t]; r.append(o[:,:,t]*c)
    return torch.stack(r,-1)
A("qrnn_fifo","scan",qrnn,[(6,13,5),(6,19)],lambda:(nn.Conv1d(13,76,2),))
def indrnn(w,u,x,h):
    y=w(x).transpose(0,1); o=[]
    for t in y.unbind(0)[:5]: h=F.relu6(t+u.clamp(-1.1,1.1)*h); o.append(h)
    return torch.stack(o,1)*0.5+x[...,:31]
A("indrnn","scan",indrnn,[(7,5,40),(7,31)],lambda:(L(40,31),P(31)))
def zone(w,x,h,c,m):
    g,i,o,f=w(torch.cat([x,h],1)).chunk(4,1); c1=f.sigmoid()*c+i.sigmoid()*g.tanh(); h1=o.sigmoid()*c1.tanh()
    return torch.where(m,h,h1),0.15*c+0.85*c1,(h1-h).square().sum(1)
A("zoneout","product",zone,[(28,12),(28,25),(28,25),rb(.15,28,25)],lambda:(L(37,100),))
def ugrnn(w,x,h):
    g,c=w(torch.cat((x,h),-1)).tensor_split(2,-1); g=sg(g+1.5); return g*h+(1-g)*F.elu(c)
A("ugrnn_bf","product",ugrnn,[rh(33,18),rh(33,30)],lambda:(L(48,60).bfloat16(),))
def rhn(w,ws,x,s):
    for k,l in enumerate(ws):
        h,t,c=(l(s)+(w(x) if k==0 else 0)).chunk(3,-1); t=sg(t-2.0); c=sg(c+2.0); s=th(h)*t+s*c
    return s,(t*c).amax(-1)
A("rhn2","product",lambda w,a,b,x,s:rhn(w,(a,b),x,s),[(19,14),(19,22)],lambda:(L(14,66),L(22,66),L(22,66)))
def mlstm(wm,um,w,x,h,c):
    m=wm(x)*um(h); g=w(torch.cat([x,m],1)); o,i,f,u=[g[:,k::4] for k in range(4)]
    c=sg(f)*c+sg(i)*th(u); return th(c*sg(o)),c
A("mlstm_strided","product",mlstm,[(23,16),(23,20),(23,20)],lambda:(L(16,20),L(20,20),L(36,80)))
def janet(w,x,h,bw):
    f,g=w(torch.cat((x,h),1)).chunk(2,1); s=f+1.; return sg(s)*h+(1-sg(s-1.0))*th(g)
A("janet","product",lambda w,x,h:janet(w,x,h,0),[(41,10),(41,17)],lambda:(L(27,34),))
def slstm(w,x,h,c,n,m):
    i,f,z,o=w(torch.cat((x,h),1)).chunk(4,1); lf=F.logsigmoid(f); mn=torch.maximum(lf+m,i)
    ip=torch.exp(i-mn); fp=torch.exp(lf+m-mn); c=fp*c+ip*th(z); n=fp*n+ip; return sg(o)*c/n.clamp_min(1e-3),c,n,mn
A("slstm","product",slstm,[(24,11),(24,19),(24,19),lambda:torch.rand(24,19)+.5,(24,19)],lambda:(L(30,76),))
def mlstm_mem(w,x,C,n):
    q,k,v,gi,gf=w(x).split((12,12,14,1,1),-1); k=k*12**-.5; i=torch.exp(gi.clamp(max=4)); f=sg(gf)
    C=f[...,None]*C+i[...,None]*v.unsqueeze(2)*k.unsqueeze(1); n=f*n+i*k
    return (C*q[:,None]).sum(-1)/(n*q).sum(-1,keepdim=True).abs().clamp_min(1.0),C,n
A("mlstm_matrix","product",mlstm_mem,[(13,26),(13,14,12),(13,12)],lambda:(L(26,40),))
def convlstm(cv,x,h,c):
    i,f,o,g=cv(torch.cat((x,h),1)).chunk(4,1); c=sg(f+1)*c+sg(i)*F.silu(g); return sg(o)*c.tanh(),c
A("convlstm","conv",convlstm,[(2,5,13,11),(2,9,13,11),(2,9,13,11)],lambda:(nn.Conv2d(14,36,3,padding=1),))
def convgru(cz,cq,x,h):
    z,r=cz(torch.cat([h,x],1)).sigmoid().split(10,1); q=th(cq(torch.cat([r*h,x],1))); return (1-z)*h+z*q
A("convgru_sep","conv",convgru,[(2,6,9,15),(2,10,9,15)],lambda:(nn.Conv2d(16,20,(1,5),padding=(0,2)),nn.Conv2d(16,10,(1,5),padding=(0,2))))
def bigru_step(w,u,x,h):
    g=w(torch.stack([x,x.flip(1)])); d=21; a=g[...,:d]; b=g[...,d:2*d]; c=g[...,2*d:]
    z=sg(a+h.view(2,1,1,1,1)*u); y=z*h.view(2,1,1,1,1)+(1-z)*th(c-b.square()); return y[0]+y[1].flip(1)
A("bidir_flip","product",bigru_step,[(2,5,17,21),(2,)],lambda:(L(21,63),P(21)),train=False)
def nas(w,x,h):
    a,b,c,d,e,f=w(torch.cat((x,h),1)).chunk(6,1)
    p=sg(a)*F.relu(d); q=th(b+c); r=torch.maximum(e,f*p); return th(p+q)*sg(r)+0.3*h*F.relu(c)
A("nas_cell6","product",nas,[(29,14),(29,18)],lambda:(L(32,108),))
def ltc(w,tau,x,h):
    for _ in range(3):
        f,a=w(torch.cat((x,h),1)).chunk(2,1); f=sg(f); h=(h+.1*f*a)/(1+.1*(F.softplus(tau)+f))
    return h
A("liquid_tc","scan",ltc,[(16,9),(16,24)],lambda:(L(33,48),P(24)))
def cfc(w,x,h,ts):
    f,g,ta,tb=w(torch.cat((x,h),-1)).chunk(4,-1); t=sg(ta*ts[:,None]+tb); return th(f)*(1-t)+t*th(g),t.std(1)
A("cfc","product",cfc,[(35,11),(35,22),(35,)],lambda:(L(33,88),))
def atr(wp,wq,x,h):
    p=wp(x); q=wq(h); i=sg(p+q); f=sg(p-q); return i*p+f*h
A("atr","product",atr,[rf(27,19),rf(27,32)],lambda:(L(19,32).half(),L(32,32,bias=False).half()))
def antisym(w,v,x,h):
    W=w-w.T-0.01*torch.eye(w.size(0)); a=h@W.T; b=v(x); c1,c2=b.chunk(2,1); return h+0.1*sg(a+c2)*th(a+c1)
A("antisym_rnn","product",antisym,[(30,12),(30,23)],lambda:(P(23,23),L(12,46)))
def fastg(w,u,z,n,x,h):
    p=w(x)+u(h); zt=sg(p+z); return (sg(n[0])*(1-zt)+sg(n[1]))*th(p-z)+zt*h
A("fastgrnn","product",fastg,[(38,16),(38,26)],lambda:(L(16,26,bias=False),L(26,26,bias=False),P(26),P(2)))
def onlstm(w,x,h,c):
    g=w(torch.cat((x,h),1)); mf=g[:,:5].softmax(-1).cumsum(-1); mi=1-g[:,5:10].softmax(-1).cumsum(-1)
    f,i,o,u=g[:,10:].view(-1,4,5,6).unbind(1); om=(mf*mi)[...,None]; mf=mf[...,None]; mi=mi[...,None]; c=c.view(-1,5,6)
    cy=(sg(f)*om+(mf-om))*c+(sg(i)*om+(mi-om))*th(u); return (sg(o)*th(cy)).flatten(1),cy,1-mf.squeeze(-1).mean(-1)
A("onlstm","product",onlstm,[(14,10),(14,30),(14,30)],lambda:(L(40,130),))
def treelstm(wi,wf,x,h,c,m):
    hs=(h*m[...,None]).sum(1); i,o,u=wi(torch.cat((x,hs),1)).chunk(3,1)
    f=sg(wf(h)+x[:,None,:15]).masked_fill(~m[...,None],0.); cc=sg(i)*th(u)+(f*c).sum(1); return sg(o)*cc.tanh(),cc
A("childsum_tree","product",treelstm,[(18,15),(18,4,15),(18,4,15),rb(.7,18,4)],lambda:(L(30,45),L(15,15)))
def phased(w,tau,s,x,c,t):
    phi=torch.remainder(t[:,None]-s,tau.abs()+.5)/(tau.abs()+.5); k=torch.where(phi<.05,phi*40,torch.where(phi<.1,2-phi*20,.001*phi))
    i,f,g=w(x).chunk(3,1); cn=sg(f)*c+sg(i)*th(g); return k*cn+(1-k)*c
A("phased","product",phased,[(32,13),(32,24),(32,)],lambda:(L(13,72),P(24),P(24)))
def lmu(w,x,u,m,a,b):
    m2=m+.05*(torch.einsum("bcj,ij->bci",m,a)+u[...,None]*b); return m2,th(w(x)+m2.flatten(1)[:,::2].sum(1,keepdim=True)*1/3)
A("lmu","product",lmu,[(17,10),(17,6),(17,6,8),(8,8),(8,)],lambda:(L(10,21),))
def bistable(w,x,h):
    a,c,u=w(x).tensor_split((20,40),1); a=1+th(a+.7*h); c=sg(c-h); return c*h+(1-c)*th(u+a*h)
A("bistable_brc","product",bistable,[(36,15),(36,20)],lambda:(L(15,60),))
# ---- attention by hand
def causal(n,m=None,off=0): m=m or n; return torch.arange(m)[None,:]>torch.arange(n)[:,None]+off
def heads(t,h): return t.unflatten(-1,(h,-1)).transpose(-3,-2)
def talking(w,p1,p2,x):
    q,k,v=(heads(t,4) for t in w(x).chunk(3,-1)); s=torch.einsum("bhid,bhjd,hg->bgij",q,k,p1)*.35
    s=s.masked_fill(causal(x.size(1)).to(s.device),-1e9).softmax(-1); return torch.einsum("bhij,hg,bgjd->bigd",s,p2,v).flatten(2)
A("talking","product",talking,[(2,19,28)],lambda:(L(28,84),P(4,4),P(4,4)))
def talking2(p1,p2,s,m):
    a=torch.einsum("hg,bhij->bgij",p1,s); a=torch.where(m[:,None,None],a,-1e4).softmax(-1); return torch.einsum("hg,bhij->bgij",p2,a)-s*.05
A("talking_logits","reduction",talking2,[(2,5,17,22),rb(.8,2,22)],lambda:(P(5,5),P(5,5)))
def sigattn(q,k,v,b):
    s=q@k.transpose(-1,-2)/math.sqrt(q.size(-1))-math.log(k.size(-2))+b[:,None,None]; i=torch.arange(q.size(2)); j=torch.arange(k.size(2))
    return (sg(s)*(i[:,None]>=j).to(s.dtype))@v
A("sigmoid_attn","product",sigattn,[(2,3,25,14),(2,3,25,14),(2,3,25,18),(3,)])
def banded(q,k,w):
    n=q.shape[-2]; i=torch.arange(n); d=(i[:,None]-i[None]).abs(); s=torch.bmm(q,k.mT)*.25; s=s.masked_fill(d>w,float("-inf")); return (s-s.logsumexp(-1,keepdim=True)).exp(),s[:,::2,1::2].clamp_min(-5).sum(2)
A("banded5","product",lambda q,k:banded(q,k,5),[(6,27,16),(6,27,16)])
def strided(q,k,v):
    i=torch.arange(q.shape[2]); m=((i[:,None]-i)%4==0)|((i[:,None]-i).clamp(0)<3); m=m&(i[:,None]>=i)
    a=torch.softmax(torch.where(m,torch.einsum("bhqd,bhkd->bhqk",q,k)*.3,torch.tensor(-1e9)),-1); return (a@v).transpose(1,2).flatten(2)
A("strided_sparse","product",strided,[(2,3,21,10),(2,3,21,10),(2,3,21,13)])
def relshift(q,k,r,u,v):
    ac=(q+u)@k.mT; bd=(q+v)@r.mT; b,h,n,m=bd.shape; bd=F.pad(bd,(1,0)).view(b,h,m+1,n)[:,:,1:].reshape(b,h,n,m)[...,:n]
    return ((ac+bd)*.27).softmax(-1)
A("txl_relshift","product",lambda u,v,q,k,r:relshift(q,k,r,u,v),[(2,3,14,12),(2,3,14,12),(3,27,12)],lambda:(P(3,1,12),P(3,1,12)))
def alibi(q,k,v):
    h=q.shape[1]; sl=torch.exp2(-8.*(torch.arange(h)+1)/h); i=torch.arange(q.shape[2]); j=torch.arange(k.shape[2]); d=(j[None]-i[:,None]).float()
    s=q@k.mT*.2+sl[:,None,None]*d; s=s+torch.full_like(d,float("-inf")).triu(1); return F.softmax(s,-1)@v
A("alibi","product",alibi,[(2,6,18,10),(2,6,18,10),(2,6,18,11)])
def rot_half(x,c,s): a,b=x.chunk(2,-1); return x*c+torch.cat((-b,a),-1)*s
def rope_half(w,x):
    q,k,v=w(x).unflatten(-1,(3,4,14)).unbind(2); t=torch.arange(x.shape[1])[:,None]*10000**(-torch.arange(7)/7); t=torch.cat((t,t),-1); c,s=t.cos()[:,None],t.sin()[:,None]
    return rot_half(q,c,s)*14**-.5,rot_half(k,c,s),v
A("rope_half","product",rope_half,[(2,13,32)],lambda:(L(32,168,bias=False),))
def rope_inter(w,x,f):
    q,k=w(x).chunk(2,-1); q=q.unflatten(-1,(-1,8,2)); k=k.unflatten(-1,(-1,8,2)); c=f.cos()[:,None]; s=f.sin()[:,None]
    def r(t): return torch.stack((t[...,0]*c-t[...,1]*s,t[...,0]*s+t[...,1]*c),-1).flatten(3)
    return (r(q).transpose(1,2)@r(k).permute(0,2,3,1))*.25
A("rope_interleaved","product",rope_inter,[(2,15,30),(15,8)],lambda:(L(30,96),))
def rope_partial(w,gq,gk,x):
    q,k=w(x).view(2,17,2,5,12).unbind(2); q=rms(q)*gq; k=rms(k)*(1+gk); t=torch.outer(torch.arange(17.),1/torch.tensor([1.,7.,49.])).repeat(1,2)[:,None]
    f=lambda z: torch.cat((rot_half(z[...,:6],t.cos(),t.sin()),z[...,6:]),-1)
    return f(q).transpose(1,2),f(k).transpose(1,2)
A("qknorm_rope_partial","product",rope_partial,[(2,17,26)],lambda:(L(26,120),P(12),P(12)))
def softcap(q,k,v,m):
    s=th(q@k.mT*.3/20)*20; s=s.masked_fill(~m[:,None,None,:],torch.finfo(s.dtype).min); p=s.float().softmax(-1).to(s.dtype); return p@v
A("softcap_pad","product",softcap,[rh(2,3,15,16),rh(2,3,23,16),rh(2,3,23,12),rb(.8,2,23)])
def sink(w,sk,x):
    q,k,v=w(x).split((24,24,30),-1); q,k,v=(heads(t,3) for t in (q,k,v)); s=q@k.mT*.35
    i=torch.arange(x.size(1)); s=s.masked_fill((i[None]>i[:,None])|(i[:,None]-i[None]>=6),-1e30)
    s=torch.cat((s,sk.view(1,-1,1,1).expand(s.size(0),-1,s.size(2),1)),-1); s=(s-s.amax(-1,keepdim=True).detach()).exp(); p=s/s.sum(-1,keepdim=True); return p[...,:-1]@v
A("sink_window","product",sink,[(2,20,27)],lambda:(L(27,78),P(3)))
def mqa(wq,wkv,x):
    b,n,_=x.shape; q=wq(x).view(b,n,5,8); k,v=wkv(x).chunk(2,-1); s=torch.einsum("bnhd,bmd->bhnm",q,k)*8**-.5; s=s.softmax(-1)
    o=s@v.unsqueeze(1).expand(-1,5,-1,-1); return o.transpose(1,2).reshape(b,n,-1)+wq(x)
A("mqa_expand","product",mqa,[(3,14,22)],lambda:(L(22,40),L(22,16)))
def gqa(w,wo,x,m):
    b,n,_=x.shape; y=w(x); q=y[...,:48].view(b,n,2,3,8); k=y[...,48:64].view(b,n,2,8); v=y[...,64:].view(b,n,2,8)
    s=torch.einsum("bnghd,bmgd->bghnm",q,k)*.3536+m.float()[:,None,None,None]*-1e4; return wo(torch.einsum("bghnm,bmgd->bnghd",s.softmax(-1),v).flatten(2))*.5+x
A("gqa_einsum5","product",gqa,[(2,13,25),rb(.2,2,13)],lambda:(L(25,80),L(48,25)))
def diffattn(w,l1,l2,x):
    q,k,v=w(x).chunk(3,-1); q=heads(q,6); k=heads(k,6); v=heads(v,3); s=(q@k.mT*.4).masked_fill(causal(x.size(1)),float("-inf")).softmax(-1)
    s=s.unflatten(1,(3,2)); lam=(l1[0]*l1[1]).sum().exp()-(l2[0]*l2[1]).sum().exp()+.8; o=(s[:,:,0]-lam*s[:,:,1])@v; return (rms(o,1e-5)*.2).transpose(1,2).flatten(2)
A("diff_attn","product",diffattn,[(2,16,24)],lambda:(L(24,108),P(2,6),P(2,6)))
def attpool(w,v,x,m):
    e=(th(w(x))*v).sum(-1).masked_fill(m,-1e9); a=e.softmax(1)[...,None]; mu=(a*x).sum(1); sd=((a*x.square()).sum(1)-mu**2).clamp_min(1e-5).sqrt(); return torch.cat((mu,sd),1),a.squeeze(-1)
A("attn_stat_pool","product",attpool,[(6,21,26),rb(.2,6,21)],lambda:(L(26,15),P(15)))
def gatedpool(wv,wu,ww,x):
    a=ww(th(wv(x))*sg(wu(x))); a=torch.softmax(a.transpose(1,2),-1); return a@x,(a*torch.log(a+1e-8)).sum(-1).neg()
A("gated_mil","product",gatedpool,[(3,24,30)],lambda:(L(30,18),L(30,18),L(18,2)))
def xattn(wq,wk,wv,x,mem,pad):
    q=heads(wq(x),2); k=heads(wk(mem),2); v=heads(wv(mem),2); s=torch.matmul(q*13**-.5,k.transpose(2,3)); s=s.masked_fill(pad[:,None,None,:],float("-inf")); p=torch.nan_to_num(s.softmax(-1)); return x+(p@v).transpose(1,2).reshape_as(x),p.mean(1)
A("cross_keypad","product",xattn,[(3,14,26),(3,19,22),rb(.3,3,19)],lambda:(L(26,26),L(22,26),L(22,26)))
def slot(wk,wv,wq,lns,x,s):
    k=wk(x)*.2; v=wv(x); q=wq(lns(s)); a=torch.einsum("bnd,bsd->bns",k,q).softmax(-1)+1e-8; w=a/a.sum(1,keepdim=True); u=torch.einsum("bns,bnd->bsd",w,v); return s+.5*u,a.argmax(-1)
A("slot","product",slot,[(3,33,14),(3,5,18)],lambda:(L(14,18),L(14,18),L(18,18),nn.LayerNorm(18)))
def squash(s,d=-1): n=s.square().sum(d,keepdim=True); return n/(1+n)*s*torch.rsqrt(n+1e-8)
def caps(W,u):
    uh=torch.einsum("iojk,bik->bioj",W,u); b=torch.zeros(uh.shape[:3],device=u.device)
    for t in range(3):
        c=b.softmax(2); v=squash((c[...,None]*uh).sum(1))
        if t<2: b=b+(uh*v[:,None]).sum(-1)
    return v,v.norm(dim=-1)
A("caps_routing","reduction",caps,[(3,17,6)],lambda:(P(17,5,8,6),))
def lincausal(w,x):
    q,k,v=w(x).chunk(3,-1); q=F.elu(q)+1; k=F.elu(k)+1; kv=(k[...,None]*v[:,:,None]).cumsum(1); z=k.cumsum(1); return (q[...,None]*kv).sum(2)/((q*z).sum(-1,keepdim=True)+1e-6)
A("linear_attn_cumsum","scan",lincausal,[(2,17,20)],lambda:(L(20,36),))
def linbi(q,k,v):
    q=q.softmax(-1)*.3; k=k.softmax(-2); c=k.mT@v; return q@c,(F.relu(q)@k.sum(-2,keepdim=True).mT)+1e-6
A("efficient_attn","product",linbi,[(2,3,26,9),(2,3,26,9),(2,3,26,14)])
def retnet(w,gn,wg,x):
    q,k,v=w(x).split((32,32,48),-1); q,k,v=(heads(t,4) for t in (q,k,v)); n=x.shape[1]; g=torch.log(1-2.**(-3-torch.arange(4.))); i=torch.arange(n); d=(i[:,None]-i)
    D=torch.where(d>=0,torch.exp(d*g[:,None,None]),0.); D=D/D.sum(-1,keepdim=True).sqrt(); s=q@k.mT*8**-.5*D; s=s/s.detach().abs().sum(-1,keepdim=True).clamp(min=1); o=(s@v).transpose(1,2)
    o=gn(o.reshape(-1,48)).view(x.shape[0],n,48); return F.silu(wg(x))*o
A("retention","product",retnet,[(2,18,30)],lambda:(L(30,112),nn.GroupNorm(4,48),L(30,48)))
def rwkv_mix(tk,tv,tr,wk,wv,wr,x):
    xx=F.pad(x,(0,0,1,-1)); k=wk(x*tk+xx*(1-tk)); r=wr(torch.lerp(xx,x,tr)); k=F.relu(k).square(); return sg(r)*wv(k)
A("rwkv_channel","product",lambda a,b,c,d,e,f:rwkv_mix(a,0,b,c,d,e,f),[(2,19,22)],lambda:(P(22),P(22),L(22,37,bias=False),L(37,22,bias=False),L(22,22,bias=False)))
def wkv(u,w,k,v,r):
    a=torch.zeros_like(k[:,0]); b=a; p=a-1e30; o=[]; w=-torch.exp(w)
    for t in range(4):
        q=torch.maximum(p,u+k[:,t]); e1=(p-q).exp(); e2=(u+k[:,t]-q).exp(); o.append(sg(r[:,t])*(e1*a+e2*v[:,t])/(e1*b+e2)); q=torch.maximum(p+w,k[:,t]); e1=(p+w-q).exp(); e2=(k[:,t]-q).exp(); a=e1*a+e2*v[:,t]; b=e1*b+e2; p=q
    return torch.stack(o,1)
A("wkv4","scan",wkv,[(5,4,27)]*3,lambda:(P(27),P(27)))
def ddlerp(mu,a,b,x):
    xs=torch.roll(x,1,1)*(torch.arange(x.size(1))>0)[:,None]; d=xs-x; z=th(a(x+d*mu[0])).unflatten(-1,(3,5)); m=torch.einsum("btrk,rkc->rbtc",z,b); r,w,g=(x[None]+d[None]*(mu[1:,None,None]+m)).unbind(0); return r,torch.exp(-torch.exp(w-2)),F.silu(g)
A("rwkv6_ddlerp","product",ddlerp,[(2,15,24)],lambda:(P(4,24),L(24,15),P(3,5,24)))
def delta(w,x,S):
    q,k,v,bt=w(x).split((4*10,4*10,4*13,4),-1); o=[]
    q=F.normalize(F.silu(q.unflatten(-1,(4,10))),dim=-1); k=F.normalize(F.silu(k.unflatten(-1,(4,10))),dim=-1); v=v.unflatten(-1,(4,13)); bt=sg(bt)
    for t in range(3):
        pr=torch.einsum("bhkv,bhk->bhv",S,k[:,t]); S=S+k[:,t,:,:,None]*((v[:,t]-pr)*bt[:,t,:,None])[:,:,None]; o.append(torch.einsum("bhkv,bhk->bhv",S,q[:,t]))
    return torch.stack(o,1),S
A("delta_rule","product",delta,[(3,3,25),(3,4,10,13)],lambda:(L(25,136),))
def gateddelta(q,k,v,a,b,S):
    q=rms(q);k=k*torch.rsqrt((k*k).sum(-1,True)+1e-6); g=torch.exp(-F.softplus(a+.3)*1.3); o=[]
    for t in range(3):
        S=S*g[:,t,:,None,None]; u=(v[:,t]-(S*k[:,t,...,None]).sum(-2))*sg(b[:,t])[...,None]; S=S+k[:,t].unsqueeze(-1)*u.unsqueeze(-2); o.append((S*q[:,t,...,None]).sum(-2))
    return torch.stack(o,2)
A("gated_delta_pw","scan",gateddelta,[(2,3,3,9),(2,3,3,9),(2,3,3,11),(2,3,3),(2,3,3),(2,3,9,11)])
def mambaconv(wi,cv,wx,wd,x):
    u,z=wi(x).chunk(2,-1); c=cv(u.mT)[...,:x.size(1)].mT; c=F.silu(c); dt,B,C=wx(c).split((4,6,6),-1); dt=F.softplus(wd(dt)); return dt[...,None]*B[:,:,None]*c[...,None],(c*F.silu(z)),C*2
A("mamba_front","product",mambaconv,[(2,18,16)],lambda:(L(16,44,bias=False),nn.Conv1d(22,22,4,padding=3,groups=22),L(22,16,bias=False),L(4,22)))
def selscan(Al,D,dt,x,B,C,h):
    Am=-torch.exp(Al); o=[]; dt=F.softplus(dt-1)
    for t in range(4):
        h=torch.exp(dt[:,t,:,None]*Am)*h+(dt[:,t]*x[:,t])[...,None]*B[:,t,None]; o.append((h*C[:,t,None]).sum(-1)+D*x[:,t])
    return torch.stack(o,1),h
A("selective_scan4","scan",selscan,[(3,4,21),(3,4,21),(3,4,5),(3,4,5),(3,21,5)],lambda:(P(21,5),P(21)))
def ssd(x,dt,B,C):
    a=-F.softplus(dt); cs=a.cumsum(1).mT; seg=cs[...,:,None]-cs[...,None,:]; n=x.shape[1]; Lm=torch.where(torch.ones(n,n,dtype=torch.bool).tril(),seg,float("-inf")).exp(); s=torch.einsum("bin,bjn->bij",C,B)[:,None]*Lm; return torch.einsum("bhij,bjhp->bihp",s*F.softplus(dt).mT[:,:,None],x)
A("ssd_chunk","product",ssd,[(2,16,3,10),(2,16,3),(2,16,7),(2,16,7)])
def s4d(lr,li,cr,ci,ld,u):
    dt=ld.exp()[:,None]; n=torch.arange(u.shape[-1]); e=(-lr.exp()*dt)[...,None]*n; p=(li*dt)[...,None]*n; k=(e.exp()*(cr[...,None]*p.cos()-ci[...,None]*p.sin())).sum(1)*2; return (k*u).cumsum(-1)+u*1.1,k
A("s4d_kernel","reduction",s4d,[(4,13,31)],lambda:(P(13,8),P(13,8),P(13,8),P(13,8),P(13)))
def gla(w,g2,x):
    q,k,v,g=w(x).split((18,18,30,18),-1); gl=F.logsigmoid(g)/16; c=gl.cumsum(1); qd=q*c.exp()*.4; kd=k*(-c).exp(); s=(heads(qd,3)@heads(kd,3).mT).tril(); o=s@heads(v,3); return rms(o).transpose(1,2).flatten(2)*F.silu(g2(x))
A("gla_chunk","product",gla,[(2,17,26)],lambda:(L(26,84),L(26,30)))
def hyena(w,cv,k,x):
    y=cv(w(x).mT)[...,:x.size(1)]; a,b,v=y.chunk(3,1); u=a*v; n=u.size(-1); i=torch.arange(n); d=i[:,None]-i; T=torch.where(d>=0,k[:,d.clamp(0)],0.); return (b*torch.einsum("cts,bcs->bct",T,u)).mT
A("hyena_toeplitz","product",hyena,[(2,19,12)],lambda:(L(12,45),nn.Conv1d(45,45,3,padding=2,groups=45),P(15,19)))
def lru(nu,tht,w,x):
    y=w(x); m=torch.exp(-nu.exp()); re,im=m*tht.cos(),m*tht.sin(); g=(1-m*m).clamp_min(1e-6).sqrt(); hr,hi=y[:,0]*g,torch.zeros_like(y[:,0]); o=[]
    for t in range(1,5): hr,hi=re*hr-im*hi+g*y[:,t],re*hi+im*hr; o.append(hr-hi)
    return torch.stack(o,1)
A("lru_complex","scan",lru,[(6,5,18)],lambda:(P(25),P(25),L(18,25)))
def rglru(wr,wi,a,x,h):
    r=sg(wr(x)); i=sg(wi(x)); la=-8*F.softplus(a)*r; m=torch.sqrt(-torch.expm1(2*la)+1e-6); u=m*i*x; A_=la.exp(); o=[]
    for t in range(3): h=A_[:,t]*h+u[:,t]; o.append(h)
    return torch.stack(o,1)
A("rglru","product",rglru,[(7,3,26),(7,26)],lambda:(L(26,26),L(26,26),P(26)))
# ---- gates
def swiglu_clamped(w,wo,x): g,u=w(x)[...,::2],w(x)[...,1::2]; g=g.clamp(max=7.); u=u.clamp(-7,7); return wo((u+1)*g*sg(1.702*g))
A("swiglu_interleave_clamp","product",swiglu_clamped,[(2,21,18)],lambda:(L(18,74),L(37,18)))
A("geglu_tanh_tail","product",lambda w,ln,x:(lambda a,b:ln(a*F.gelu(b,approximate="tanh"))+x[...,:33].pow(3)*.044715)(*w(x).chunk(2,-1)),[rh(2,19,40)],lambda:(L(40,66).bfloat16(),nn.LayerNorm(33).bfloat16()))
A("reglu3","product",lambda w,x:(lambda a,b,c:F.relu(a)*b-F.relu(b)*c+F.relu(c)*a)(*torch.tensor_split(w(x),3,1)),[(31,28)],lambda:(L(28,57),))
A("bilinear_gate_sq","product",lambda w,v,x,y:(w(x)*v(y)).unflatten(1,(5,7)).square().sum(2).sqrt()+1e-3,[(30,16),(30,22)],lambda:(L(16,35),L(22,35)))
def sgu(w,wo,ln,sw,sb,x): u,v=F.gelu(w(x)).chunk(2,-1); v=torch.einsum("mn,bnd->bmd",sw.tril(),ln(v))+sb[:,None]; return wo(u*v)+x
A("gmlp_sgu_tril","product",sgu,[(2,17,22)],lambda:(L(22,62),L(31,22),nn.LayerNorm(31),P(17,17),P(17)))
def highway_conv(c,x): h,t=c(F.pad(x,(4,0))).chunk(2,1); t=sg(t-1.5); return t*F.leaky_relu(h,.1)+(1-t)*x
A("highway_causal_conv","conv",highway_conv,[(3,18,29)],lambda:(nn.Conv1d(18,36,3,dilation=2),))
def wavenet(c,cc,r,s,x,y): z=c(x)+cc(y)[:,:,None]; a,b=z.chunk(2,1); h=a.tanh()*b.sigmoid(); return (x[...,-h.size(2):]+r(h))*math.sqrt(.5),s(h)[...,3:]
A("wavenet_cond","conv",wavenet,[(2,14,33),(2,9)],lambda:(nn.Conv1d(14,32,2,dilation=4),L(9,32),nn.Conv1d(16,14,1),nn.Conv1d(16,23,1)))
def tcn_gate4(c,x): a,b,d,e=c(x).unflatten(1,(-1,4)).unbind(2); return torch.where(d>0,a*sg(b),.2*a*e)+F.softplus(e,beta=2)
A("conv_gate4_inner","conv",tcn_gate4,[(2,9,23)],lambda:(nn.Conv1d(9,44,5,padding=2,stride=2),))
def gatedconv2d(c,x): y=c(x); f,g=y[:,:11],y[:,11:]; f=F.elu(f); f=(f-f.mean((2,3),True))*torch.rsqrt(f.var((2,3),unbiased=False,keepdim=True)+1e-5); return f*sg(g)
A("gated_inpaint","conv",gatedconv2d,[rf(2,7,13,15)],lambda:(nn.Conv2d(7,22,3,padding=2,dilation=2).half(),),)
def simplegate(c1,d,c2,be,x): y=c1(F.layer_norm(x.permute(0,2,3,1),(x.size(1),)).permute(0,3,1,2)); y=d(y); a,b=y.chunk(2,1); y=a*b; y=y*c2(y.mean((-2,-1),keepdim=True)); return y*be
A("nafnet_gate","conv",simplegate,[(2,10,11,13)],lambda:(nn.Conv2d(10,30,1),nn.Conv2d(30,30,3,padding=1,groups=30),nn.Conv2d(15,15,1),P(1,15,1,1)))
def gdfn(c,d,x): a,b=d(c(x)).tensor_split(2,1); return F.gelu(a)*b+F.gelu(b)*a.flip(-1)
A("gdfn_cross_flip","conv",gdfn,[(2,8,12,14)],lambda:(nn.Conv2d(8,26,1),nn.Conv2d(26,26,3,padding=1,groups=26)))
def film4(w,c,x,z): g,b,o,k=w(z)[:,:,None,None].chunk(4,1); h=c(x); h=(1+g)*h+b; return F.silu(h)*sg(o)-th(k)*h.amax((2,3),keepdim=True)
A("film4","conv",film4,[(3,6,11,13),(3,10)],lambda:(L(10,68),nn.Conv2d(6,17,3,padding=1)))
def adaln6(w,wi,wo,x,c):
    s1,b1,g1,s2,b2,g2=w(F.silu(c))[:,None].chunk(6,-1); n=lambda t:F.layer_norm(t,t.shape[-1:],eps=1e-6)
    h=x+g1*wi(n(x)*(1+s1)+b1); return h+g2*F.gelu(wo(n(h)*(1+s2)+b2),approximate="tanh")
A("adaln_six","product",adaln6,[(3,15,24),(3,13)],lambda:(L(13,144),L(24,24),L(24,24)))
def adaln_table(t,w,x,e):
    sh,sc,g=(t[None]+w(e).unflatten(-1,(6,22)))[:,[1,4,2]].unbind(1); return x+g[:,None]*(rms(x)*(1+sc[:,None])+sh[:,None])
A("adaln_table","product",adaln_table,[(3,16,22),(3,12)],lambda:(P(6,22),L(12,132)))
def adain(w,x,z): m=x.mean((2,3,4),keepdim=True); v=(x-m).square().mean((2,3,4),keepdim=True); s,b=w(z).view(2,2,7,1,1,1).unbind(1); return (x-m)/(v+1e-5).sqrt()*(1+s)+b
A("adain5d","norm",adain,[(2,7,6,9,10),(2,11)],lambda:(L(11,14),))
def spade(c,cg,x,seg): n=(x-x.mean((0,2,3),keepdim=True))*x.var((0,2,3),keepdim=True).add(1e-5).rsqrt(); a=F.relu(c(seg)); g,b=cg(a).split(9,1); return F.leaky_relu(n*(1+g)+b,.2)
A("spade","conv",spade,[(2,9,10,14),(2,4,10,14)],lambda:(nn.Conv2d(4,13,3,padding=1),nn.Conv2d(13,18,3,padding=1)))
def hyper(wg,x,z): k=wg(z); W=k[:,:15*12].view(-1,12,15); b=k[:,180:192]; s=k[:,192:]; W=W*torch.rsqrt(W.square().sum(2,keepdim=True)+1e-8); return F.relu(torch.bmm(x,W.mT)*s[:,None]+b[:,None])
A("hypernet_demod","product",hyper,[(5,14,15),(5,8)],lambda:(L(8,204),))
def hyperlstm(wx,wh,dz,x,h,c,z):
    g=wx(x)*dz(z)[:,:64]+wh(h)*dz(z)[:,64:]; i,j,f,o=g.unflatten(1,(4,16)).unbind(1); i,j,f,o=(F.layer_norm(t,(16,)) for t in (i,j,f,o)); c=c*sg(f+1)+sg(i)*th(j); return th(F.layer_norm(c,(16,)))*sg(o),c
A("hyperlstm","product",hyperlstm,[(22,13),(22,16),(22,16),(22,7)],lambda:(L(13,64,bias=False),L(16,64,bias=False),L(7,128)))
def moe_dense(wg,w1,w2,x):
    p=wg(x).softmax(-1); h=torch.einsum("nd,edf->enf",x,w1); a,b=h.chunk(2,-1); y=torch.bmm(F.silu(a)*b,w2); aux=(p.mean(0)*(p>1/5).float().mean(0)).sum()*5; return torch.einsum("ne,end->nd",p,y),aux
A("moe_dense_swiglu","product",moe_dense,[(26,18)],lambda:(L(18,5),P(5,18,24),P(5,12,18)))
def moe_thresh(wg,we,x): s=sg(wg(x)); m=s>=s.mean(-1,keepdim=True); p=s*m; p=p/(p.sum(-1,keepdim=True)+1e-9)*2.5; y=we(x).view(x.size(0),6,-1); return (F.gelu(y)*p[...,None]).sum(1),m.sum(0)
A("moe_sigmoid_thresh","product",moe_thresh,[(33,14)],lambda:(L(14,6),L(14,66)))
def mmoe(we,g1,g2,x): e=F.relu(we(x)).unflatten(1,(4,13)); a=(g1(x).softmax(1)[...,None]*e).sum(1); b=torch.einsum("be,bed->bd",F.softmax(g2(x)/1.3,1),e); return a,b,(a-b).abs().mean(1)
A("mmoe_two_tasks","product",mmoe,[(41,15)],lambda:(L(15,52),L(15,4),L(15,4)))
def softmoe(phi,w,x): l=torch.einsum("bnd,esd->bnes",rms(x),F.normalize(phi,dim=-1)); d=l.flatten(2).softmax(1); c=l.flatten(2).softmax(2); y=torch.einsum("besd,edf->besf",torch.einsum("bnk,bnd->bkd",d,x).unflatten(1,(3,4)),w); return c@F.gelu(y).flatten(1,2)
A("soft_moe","product",softmoe,[(2,19,16)],lambda:(P(3,4,16),P(3,16,14)))
def moelora(w,a,b,g,x): r=g(x).softmax(-1); z=torch.einsum("bnd,erd->bner",x,a)*r[...,None]; return w(x)+torch.einsum("bner,efr->bnf",z,b)*(16/3)
A("mix_lora","product",moelora,[(2,16,21)],lambda:(L(21,27),P(4,3,21),P(4,27,3),L(21,4)))
def ntm_addr(w,M_,x,wp):
    y=w(x); k=th(y[:,:9]); be=F.softplus(y[:,9:10]); g=sg(y[:,10:11]); s=y[:,11:14].softmax(1); ga=1+F.softplus(y[:,14:])
    c=(be*F.cosine_similarity(M_+1e-16,k[:,None]+1e-16,dim=-1)).softmax(1); wg=g*c+(1-g)*wp.softmax(1); ws=s[:,:1]*wg.roll(1,1)+s[:,1:2]*wg+s[:,2:]*wg.roll(-1,1); ws=(ws+1e-8)**ga; return ws/(ws.sum(1,keepdim=True)+1e-16)
A("ntm_address","product",ntm_addr,[(6,22,9),(6,14),(6,22)],lambda:(L(14,15),))
def ntm_write(w,M_,x,a): e,ad=w(x).chunk(2,-1); a=a.softmax(-1); M2=M_*(1-a[...,None]*sg(e)[:,None])+a[...,None]*ad.tanh()[:,None]; return M2,(a.unsqueeze(1)@M2).squeeze(1)
A("ntm_write","product",ntm_write,[(5,21,14),(5,10),(5,21)],lambda:(L(10,28),))
def dnc_link(w,p,Lk): w=w.softmax(-1); p=p.softmax(-1); L2=(1-w[:,:,None]-w[:,None])*Lk+w[:,:,None]*p[:,None]; L2=L2*(1-torch.eye(w.size(1))); return L2,torch.einsum("bij,bj->bi",L2,p),(1-w.sum(1,keepdim=True))*p+w
A("dnc_link","pointwise",dnc_link,[(4,23),(4,23),(4,23,23)])
def memn2n(A_,C,u,m,msk):
    for i in range(2): p=torch.einsum("bd,bnd->bn",u,m@A_[i]+C[0]).masked_fill(msk,-1e9).softmax(1); u=F.elu(u+((m@A_[i+1]-C[1])*p[:,:,None]).sum(1))
    return u
A("memn2n_hops","product",memn2n,[(4,17),(4,19,14),rb(.2,4,19)],lambda:(P(3,14,17),P(2,17)))
def hopfield(X,q,be):
    for _ in range(3): q=(F.softplus(be)*rms(q)@X.T).softmax(-1)@X*.9+.1*q
    return q,-torch.logsumexp(q@X.T,-1)+.5*q.square().sum(-1)
A("hopfield_energy","product",lambda be,X,q:hopfield(X,q,be),[(25,18),(31,18)],lambda:(P(1),))
def fastw(w,sl,x,h,Aw):
    Aw=.95*Aw+.5*h[:,:,None]*h[:,None]; hb=w(torch.cat((x,h),1)); s=hb
    for _ in range(2): s=F.relu(F.layer_norm(hb+(Aw@s[...,None])[...,0],(17,),sl))
    return s,Aw
A("fast_weights","product",fastw,[(9,12),(9,17),(9,17,17)],lambda:(L(29,17),P(17)))
def pointer(w1,w2,v,e,d,cov,wc,m): s=(th(w1(e)+w2(d)[:,None]+cov[...,None]*wc)*v).sum(-1); s=torch.where(m,s,float("-inf")); a=s.softmax(-1); return a,cov+a,torch.minimum(a,cov.sigmoid()).sum(1),torch.log(a.clamp_min(1e-12))
A("pointer_coverage","product",lambda w1,w2,v,wc,e,d,cov,m:pointer(w1,w2,v,e,d,cov,wc,m),[(5,18,14),(5,11),(5,18),rb(.85,5,18)],lambda:(L(14,20,bias=False),L(11,20),P(20),P(20)))
def pgen(wv,wg,h,c,a,ids): p=sg(wg(torch.cat((h,c),1))); v=wv(h).softmax(-1)*p; oh=(ids[...,None]==torch.arange(37)).to(v.dtype); return torch.log(v+((1-p)*a.softmax(1))[:,None].bmm(oh).squeeze(1)+1e-10)
A("pointer_generator","product",pgen,[(8,15),(8,12),(8,19),ri(37,8,19)],lambda:(L(15,37),L(27,1)))
def biaffine(U,wh,wd,x,m):
    h=F.leaky_relu(wh(x),.1); d=F.leaky_relu(wd(x),.1); h1=torch.cat((h,torch.ones_like(h[...,:1])),-1); d1=F.pad(d,(0,1),value=1.); s=torch.einsum("bxi,oij,byj->boxy",h1,U,d1); s=s.masked_fill(~(m[:,None,None]&m[:,None,:,None]),-1e4); return s.permute(0,2,3,1),s.log_softmax(2)
A("biaffine_bias","product",biaffine,[(2,15,20),rb(.9,2,15)],lambda:(P(3,14,12),L(20,13),L(20,11)))
def deepbi(wa,wb,x): a=wa(x)[:,:,None]; b=wb(x)[:,None]; s=th(torch.cat((a+b,a*b,(a-b).abs()),-1)); n=x.size(1); return s.mean(-1).masked_fill(torch.eye(n,dtype=torch.bool),-50.).softmax(1),(a*b).flip(1).amax(3)
A("pairwise_scorer","product",deepbi,[(2,14,16)],lambda:(L(16,9),L(16,9)))
def ntn(W,V,a,b): t=torch.einsum("bi,kij,bj->bk",a,W,b); return th(t+V(torch.cat((a,b),1))).unflatten(1,(2,-1)).prod(1)
A("neural_tensor","product",ntn,[(27,13),(27,15)],lambda:(P(12,13,15),L(28,12)))
def tfn(x,y,z): o=lambda t:F.pad(t,(1,0),value=1.); f=o(x)[:,:,None,None]*o(y)[:,None,:,None]*o(z)[:,None,None]; return torch.sign(f)*(f.abs()+1e-6).sqrt(),f.flatten(1).norm(dim=1)
A("tensor_fusion","pointwise",tfn,[(5,10),(5,8),(5,12)])
def crf_fwd(tr,e,m):
    a=e[:,0]
    for t in range(1,4): n=torch.logsumexp(a[:,:,None]+tr+e[:,t,None],1); a=torch.where(m[:,t:t+1],n,a)
    return torch.logsumexp(a,1)
A("crf_forward3","scan",crf_fwd,[(12,4,11),rb(.8,12,4)],lambda:(P(11,11),))
def crf_semiring(tr,e): s=tr[None,None]+e[:,:,None]; s=(s[:,0::2,:,:,None]+s[:,1::2,None]).logsumexp(3); s=(s[:,0::2,:,:,None]+s[:,1::2,None]).logsumexp(3); return s
A("crf_tree","reduction",crf_semiring,[(3,8,7)],lambda:(P(7,7),))
def viterbi(tr,e): s,b=(e[:,0,:,None]+tr).max(1); s2,b2=((s+e[:,1])[...,None]+tr).max(1); return s2+e[:,2],b,b2
A("viterbi2","reduction",viterbi,[(21,3,13)],lambda:(P(13,13),),train=False)
def ctcstep(a,e,sk): p1=F.pad(a[:,:-1],(1,0),value=-1e30); p2=F.pad(a[:,:-2],(2,0),value=-1e30).masked_fill(~sk,-1e30); m=torch.maximum(torch.maximum(a,p1),p2); return m+torch.log((a-m).exp()+(p1-m).exp()+(p2-m).exp())+e
A("ctc_alpha","pointwise",ctcstep,[(34,27),(34,27),rb(.5,34,27)])
# ---- odd structure: views, windows, halves, five axes
def localwin(w,x,W=3):
    q,k,v=w(x).chunk(3,-1); ku=F.pad(k,(0,0,W,W)).unfold(1,2*W+1,1); vu=F.pad(v,(0,0,W,W)).unfold(1,2*W+1,1); s=(q[...,None]*ku).sum(2)*.3; n=x.size(1); j=torch.arange(n)[:,None]+torch.arange(2*W+1)-W
    p=s.masked_fill((j<0)|(j>=n),float("-inf")).softmax(-1); return (vu*p[:,:,None]).sum(-1)+x[...,:14],p[...,W]
A("local_unfold","product",localwin,[(2,22,18)],lambda:(L(18,42),))
def blocklocal(q,k,v):
    q,k,v=(t.unflatten(1,(4,6)) for t in (q,k,v)); pk=torch.cat((F.pad(k,(0,0,0,0,1,-1)),k),2); pv=torch.cat((F.pad(v,(0,0,0,0,1,-1)),v),2); s=torch.einsum("bgid,bgjd->bgij",q,pk)*.3; i=torch.arange(6)[:,None]+6; j=torch.arange(12); m=(j>i)|(i-j>6); first=(torch.arange(4)==0)[:,None,None]&(j<6); return (s.masked_fill(m|first,-1e9).softmax(-1)@pv).flatten(1,2)
A("block_prev","product",blocklocal,[(3,24,10),(3,24,10),(3,24,11)])
def swin(w,tb,x,idx):
    b,h,wd,c=x.shape; x2=torch.roll(x,(-2,-1),(1,2)).view(b,2,5,3,4,c).permute(0,1,3,2,4,5).reshape(-1,20,c); q,k,v=w(x2).reshape(-1,20,3,2,7).permute(2,0,3,1,4); s=(q*7**-.5)@k.mT+tb[idx].permute(2,0,1); o=(s.softmax(-1)@v).transpose(1,2).reshape(b,2,3,5,4,14).permute(0,1,3,2,4,5).reshape(b,h,wd,14); return torch.roll(o,(2,1),(1,2))
A("swin_shift","product",swin,[(2,10,12,14),ri(30,20,20)],lambda:(L(14,42),P(30,2)))
def swin2(w,ls,x): q,k,v=w(x).unflatten(-1,(3,3,8)).permute(2,0,3,1,4).unbind(0); s=F.normalize(q,dim=-1)@F.normalize(k,dim=-1).mT*ls.clamp(max=math.log(100.)).exp(); return s.softmax(-1)@v,s.diagonal(dim1=-2,dim2=-1).mean(-1)
A("cosine_logit_scale","product",swin2,[(2,21,19)],lambda:(L(19,72),P(3,1,1)))
def axial(wh,ww,x):
    a=(torch.einsum("bhwc,bgwc->bwhg",x,wh(x))*.25).softmax(-1); c=(torch.einsum("bhwc,bhvc->bhwv",x,ww(x))*.25).softmax(-1); return torch.einsum("bwhg,bgwc->bhwc",a,x)-torch.einsum("bhwv,bhvc->bhwc",c,x)*.5
A("axial","product",axial,[(2,9,11,14)],lambda:(L(14,14),L(14,14)))
def crisscross(q,k,v):
    eh=torch.einsum("bchw,bcgw->bhwg",q,k); n=q.size(2); eh=eh+torch.where(torch.eye(n,dtype=torch.bool)[:,None],-1e9,0.); ew=torch.einsum("bchw,bchv->bhwv",q,k); a=torch.cat((eh,ew),-1).softmax(-1); return torch.einsum("bhwg,bcgw->bchw",a[...,:n],v)+torch.einsum("bhwv,bchv->bchw",a[...,n:],v)
A("criss_cross","product",crisscross,[(2,6,9,11),(2,6,9,11),(2,8,9,11)])
def triang(wp,wg,ln,wo,x,m):
    z=ln(x); p=sg(wg(z))*wp(z)*m[...,None]; a,b=p.chunk(2,-1); t=torch.einsum("bikc,bjkc->bijc",a,b); return wo(F.layer_norm(t,t.shape[-1:]))*sg(z.sum(-1,keepdim=True))
A("triangle_mult","product",triang,[(2,11,11,10),rb(.9,2,11,11)],lambda:(L(10,14),L(10,14),nn.LayerNorm(10),L(7,10)))
def triatt(w,x,m): q,k,v,g,b=w(x).split((16,16,16,16,2),-1); q,k,v=(t.unflatten(-1,(2,8)) for t in (q,k,v)); s=torch.einsum("bijhc,bikhc->bhijk",q,k)*.3536+b.permute(0,3,1,2)[:,:,None]+(m.float()-1)[:,None,:,None]*1e9; return sg(g)*torch.einsum("bhijk,bikhc->bijhc",s.softmax(-1),v).flatten(-2)
A("triangle_attn5","product",triatt,[(2,7,7,12),rb(.85,2,7,7)],lambda:(L(12,66),))
def opm(w,wo,x,m): a,b=(w(x)*m[...,None]).chunk(2,-1); o=torch.einsum("bsic,bsjd->bijcd",a,b).flatten(3)/(torch.einsum("bsi,bsj->bij",m.float(),m.float())[...,None]+1e-3); return wo(o)
A("outer_product_mean","product",opm,[(2,6,9,14),rb(.8,2,6,9)],lambda:(L(14,8),L(16,11)))
def gat(w,a1,a2,x,adj):
    h=w(x).unflatten(-1,(3,9)); e=F.leaky_relu((h*a1).sum(-1)[:,None]+(h*a2).sum(-1)[None],.2); e=torch.where(adj[...,None],e,-9e15).softmax(1); return F.elu(torch.einsum("ijh,jhc->ihc",e,h).flatten(1)),e.amax((0,1))
A("gat_dense","product",gat,[(26,15),rb(.3,26,26)],lambda:(L(15,27,bias=False),P(3,9),P(3,9)))
def gatv2(wl,wr,a,x,adj): z=wl(x)[:,None]+wr(x)[None]; e=(F.leaky_relu(z,.2)*a).unflatten(-1,(2,7)).sum(-1); e=e.masked_fill(~adj[...,None],float("-inf")); e=(e-e.max(1,keepdim=True)[0].clamp_min(-1e4)).exp(); return e/(e.sum(1,keepdim=True)+1e-9)
A("gatv2","product",gatv2,[(19,12),rb(.5,19,19)],lambda:(L(12,14),L(12,14),P(14)))
def graphgru(we,wi,wh,h,A_): m=torch.einsum("eij,bjed->bid",A_,we(h).unflatten(-1,(3,16))); r,z,n=wi(m).chunk(3,-1); rh_,zh,nh=wh(h).chunk(3,-1); z=sg(z+zh); return z*h+(1-z)*th(n+sg(r+rh_)*nh)
A("ggnn","product",graphgru,[(2,13,16),(3,13,13)],lambda:(L(16,48),L(16,48),L(16,48)))
def aft(w,pb,x): q,k,v=w(x).chunk(3,-1); ew=torch.exp(pb-pb.amax(-1,keepdim=True)).tril(); ek=torch.exp(k-k.amax(1,keepdim=True)); return sg(q)*(torch.einsum("ts,bsd->btd",ew,ek*v)/(torch.einsum("ts,bsd->btd",ew,ek)+1e-6))
A("aft_full","product",aft,[(2,18,22)],lambda:(L(22,63),P(18,18)))
def aftlocal(w,wt,x): q,k,v=w(x).mT.chunk(3,1); e=k.clamp(max=8).exp(); n=F.avg_pool1d(e*v,5,1,2)*5+(e*v).cumsum(2)*.1; d=F.avg_pool1d(e,5,1,2)*5+e.cumsum(2)*.1; return (sg(q)*n/d*wt[:,None])
A("aft_local_pool","scan",aftlocal,[(3,23,14)],lambda:(L(14,51),P(17)))
def performer(om,q,k,v): f=lambda t:torch.exp(t@om-(t.square().sum(-1,keepdim=True)/2)-(t@om).amax((-1,-2),keepdim=True).detach())+1e-4; q,k=f(q*.5),f(k*.5); return (q@(k.mT@v))/(q@k.sum(-2)[...,None])
A("performer","product",performer,[(2,3,21,10),(2,3,25,10),(2,3,25,8)],lambda:(P(10,24,scale=1.),))
def cosformer(q,k,v): n=q.size(1); t=torch.arange(1,n+1)*(math.pi/2/n); q,k=F.relu(q),F.relu(k); q=torch.cat((q*t.sin()[:,None],q*t.cos()[:,None]),-1); k=torch.cat((k*t.sin()[:,None],k*t.cos()[:,None]),-1); z=1/torch.einsum("bld,bd->bl",q,k.cumsum(1)[:,-1]).clamp_min(1e-4); return torch.einsum("bld,bdm,bl->blm",q,torch.einsum("bld,blm->bdm",k,v),z)
A("cosformer","product",cosformer,[(3,22,9),(3,22,9),(3,22,13)])
def based(q,k,v): s=q@k.mT*.4; s=(1+s+s.square()/2)*torch.ones_like(s).tril(); return (s/(s.sum(-1,keepdim=True)+1e-6))@v,s.flip(-1).diagonal(dim1=-2,dim2=-1)
A("taylor_attn","product",based,[(2,3,17,9),(2,3,17,9),(2,3,17,12)])
def relu2attn(w,ga,be,x): z,u,v=torch.split(F.silu(w(x)),(12,26,26),-1); q,k=(z[...,None,:]*ga+be).unbind(-2); a=F.relu(q@k.mT/x.size(1)+be[0,0]).square(); return u*(a@v)+x
A("gau_flash","product",relu2attn,[(2,19,26)],lambda:(L(26,64),P(2,12),P(2,12)))
def mega(w,al,de,x): n=x.size(1); a=sg(al); d=sg(de); t=torch.arange(n); k=a*torch.exp(torch.log1p(-a*d+1e-6)*t[:,None]); i=t[:,None]-t; K=k[i.clamp_min(0)].masked_fill((i<0)[...,None],0); y=torch.einsum("tsc,bsc->btc",K,x); f,g=w(F.silu(y)).chunk(2,-1); return sg(f)*g+(1-sg(f))*x
A("mega_ema","product",mega,[(2,14,18)],lambda:(L(18,36),P(18),P(18)))
def stick(q,k,v): s=q@k.mT*.3; m=torch.ones(s.shape[-2:],dtype=torch.bool).tril(-1); lb=F.logsigmoid(-s).masked_fill(~m,0.); rc=lb.flip(-1).cumsum(-1).flip(-1)-lb; a=torch.exp(F.logsigmoid(s)+rc)*m; return a@v,1-a.sum(-1)
A("stick_breaking","product",stick,[(4,18,11),(4,18,11),(4,18,9)])
def forgetattn(w,x): q,k,v,f=w(x).split((24,24,24,3),-1); q,k,v=(heads(t,3) for t in (q,k,v)); c=F.logsigmoid(f+2).cumsum(1).mT; s=q@k.mT*.35+c[...,:,None]-c[...,None,:]; return (s.masked_fill(causal(x.size(1)),-1e30).softmax(-1)@v).transpose(1,2).flatten(-2)
A("forgetting_attn","product",forgetattn,[(2,16,20)],lambda:(L(20,75),))
def entmaxish(s,t): z=s-s.amax(-1,keepdim=True); p=(z*.5+t).clamp(min=0).square(); p=p/(p.sum(-1,True)+1e-8); return p,(p>0).sum(-1),-(p*(p+1e-9).log()).sum(-1)
A("clamped_square_attn","reduction",entmaxish,[rh(3,4,17,22),lambda:torch.rand(17,1).bfloat16()])
def clipsoftmax(w,x,b): q,k,v,g=w(x).split((22,22,22,2),-1); q,k,v=(heads(t,2) for t in (q,k,v)); p=((1.03+.03)*(q@k.mT*11**-.5+b).softmax(-1)-.03).clamp(0,1); return (p@v)*sg(g).mT[...,None]
A("clipped_gated_softmax","product",clipsoftmax,[rh(2,15,18),rh(15,15)],lambda:(L(18,68).bfloat16(),))
def t5bias(tb,q,k,v): i=torch.arange(q.size(2)); j=torch.arange(k.size(2)); d=(i[:,None]-j).clamp_min(0); large=(4+(torch.log(d.float().clamp_min(1)/4)/math.log(32/4)*4).long()).clamp(max=7); bk=torch.where(d<4,d,large); s=q@k.mT+tb[bk].permute(2,0,1)[None]; return s.float().softmax(-1).type_as(s)@v
A("t5_bucket","product",t5bias,[(2,3,16,9),(2,3,20,9),(2,3,20,10)],lambda:(P(8,3),))
def deberta(q,k,pq,pk): n=q.size(1); d=(torch.arange(n)[:,None]-torch.arange(n)+6).clamp(0,12); c2p=torch.gather(q@pk.T,2,d.expand(q.size(0),-1,-1)); p2c=torch.gather(k@pq.T,2,d.T.expand(q.size(0),-1,-1)).mT; return ((q@k.mT+c2p+p2c)/math.sqrt(3*q.size(-1))).softmax(-1)
A("deberta_disentangled","product",lambda pq,pk,q,k:deberta(q,k,pq,pk),[(4,18,10),(4,18,10)],lambda:(P(13,10),P(13,10)))
def shaw(rk,rv,q,k,v): n=q.size(-2); d=(torch.arange(n)-torch.arange(n)[:,None]).clamp(-4,4)+4; s=(q@k.mT+torch.einsum("bhid,ijd->bhij",q,rk[d]))*.33; p=s.softmax(-1); return p@v+torch.einsum("bhij,ijd->bhid",p,rv[d])
A("shaw_relative","product",shaw,[(2,3,13,9),(2,3,13,9),(2,3,13,9)],lambda:(P(9,9),P(9,9)))
def botnet(rh_,rw,q): b,h,y,x,d=q.shape; lw=q@rw.T; lh=torch.einsum("bhyxd,rd->bhyxr",q,rh_); ww=F.pad(lw,(0,1)).flatten(-2)[...,:].reshape(b,h,y,-1); ww=F.pad(ww,(0,x-1)).view(b,h,y,x+1,2*x-1)[...,:x,x-1:]; return ww[...,None,:]*.5+lh[...,:y,None],(lh.square().mean(-1)+1e-6).rsqrt()
A("botnet_rel2d","product",botnet,[(2,3,5,7,8)],lambda:(P(9,8),P(13,8)))
def evo(wb,x,q,k,v): q,k,v=(t.view(2,3,10,4,6) for t in (q,k,v)); s=torch.einsum("brihd,brjhd->bhij",q,k)*(6**-.5/math.sqrt(3)); s=s+wb(x).permute(0,3,1,2); a=s.softmax(-1); return torch.einsum("bhij,brjhd->brihd",a,v),a.std(-1).flatten(1)
A("tied_row_attn","product",evo,[(2,10,10,7),(2,3,10,24),(2,3,10,24),(2,3,10,24)],lambda:(L(7,4,bias=False),))
def ipa(w,wp,hw,x,Rm,t): qp,kp=wp(x).unflatten(-1,(2,3,4,3)).unbind(2); g=lambda p:torch.einsum("bnij,bnhpj->bnhpi",Rm,p)+t[:,:,None,None]; qp,kp=g(qp),g(kp); d=(qp[:,:,None]-kp[:,None]).square().sum((-1,-2)); q,k=w(x).unflatten(-1,(3,-1)).chunk(2,-1); s=torch.einsum("bihc,bjhc->bijh",q,k)*.3-.5*F.softplus(hw)*d*(2/(9*4))**.5; return (s*math.sqrt(1/3)).softmax(2)
A("invariant_point","product",ipa,[(2,8,17),(2,8,3,3),(2,8,3)],lambda:(L(17,30),L(17,72),P(3)))
def nonlocal_(c1,c2,c3,x): t=c1(x).flatten(2); p=F.max_pool2d(c2(x),2).flatten(2); g=F.max_pool2d(c3(x),2).flatten(2); f=t.mT@p; f=f/f.size(-1); return F.relu(x+0.5*(g@f.mT).view(x.size(0),-1,*x.shape[2:]))
A("nonlocal_dot","conv",nonlocal_,[(2,8,10,14)],lambda:(nn.Conv2d(8,5,1),nn.Conv2d(8,5,1),nn.Conv2d(8,8,1)))
def gcblock(ck,wt,x): a=ck(x).flatten(2).softmax(-1); c=torch.einsum("bcn,bon->bc",x.flatten(2),a); h=wt(c); s,o=h.chunk(2,1); return x*sg(s)[...,None,None]+F.hardswish(o)[:,:,None,None]
A("global_context","conv",gcblock,[(3,13,9,12)],lambda:(nn.Conv2d(13,1,1),L(13,26)))
def lambdan(wq,wk,wv,E,x): q=heads(wq(x),4); k=wk(x).softmax(1); v=wv(x); lc=torch.einsum("bnk,bnv->bkv",k,v); lp=torch.einsum("nmk,bmv->bnkv",E,v); return torch.einsum("bhnk,bkv->bnhv",q,lc)+torch.einsum("bhnk,bnkv->bnhv",q,lp)
A("lambda_layer","product",lambdan,[(2,16,18)],lambda:(L(18,28),L(18,7,bias=False),L(18,9),P(16,16,7)))
def convmixattn(cv,w,x): y=cv(x.mT).mT; q,k=w(y+x).view(*x.shape[:2],2,-1).unbind(2); g=sg((q*k).sum(-1,keepdim=True)*.2); return g*y+(1-g)*F.pad(x,(0,0,2,-2)),F.softmax(q.flip(1)*k,1)
A("shift_conv_gate","conv",convmixattn,[(2,24,15)],lambda:(nn.Conv1d(15,15,5,padding=2,groups=3),L(15,22)))
def xca(w,t,x): q,k,v=w(x).unflatten(-1,(3,4,6)).permute(2,0,3,4,1).unbind(0); q=q/q.norm(dim=-1,keepdim=True).clamp_min(1e-12); k=F.normalize(k,dim=-1); a=(q@k.mT*t).softmax(-1); return (a@v).permute(0,3,1,2).flatten(2)
A("xcit_cov","product",xca,[(2,26,17)],lambda:(L(17,72),P(4,1,1,scale=1.)))
def outlook(wa,wv,x): b,h,w_,c=x.shape; v=F.unfold(wv(x).permute(0,3,1,2),3,padding=1).view(b,2,-1,9,h*w_).permute(0,1,4,3,2); a=(wa(x).view(b,h*w_,2,9,9).permute(0,2,1,3,4)*.4).softmax(-1); return (a@v).sum(3).transpose(1,2).reshape(b,h,w_,-1)
A("outlook","product",outlook,[(2,6,7,12)],lambda:(L(12,162),L(12,12)))
# ---- more recurrent / state / mixed
def multilayer_gru(l0,l1,u0,u1,x,h):
    o=[]; a,b=h.unbind(0)
    for t in range(2):
        r,z,n=(l0(x[:,t])+F.pad(u0(a),(0,0))).chunk(3,1); a=torch.addcmul(n.tanh()*sg(r),sg(z),a-n.tanh())
        r,z,n=(l1(a)+u1(b)).split(15,1); b=(1-sg(z))*th(n*sg(r))+sg(z)*b; o.append(b+a[:,:15]*1/3)
    return torch.stack(o,1),torch.cat((a,b),1)
A("gru_two_layers","product",multilayer_gru,[(14,2,11),(2,14,15)],lambda:(L(11,45),L(15,45),L(15,45),L(15,45)))
def bilstm_step(w,x,hc):
    g=torch.einsum("dbi,dio->dbo",torch.stack((x,x.roll(1,0))),w); h,c=hc[...,:13],hc[...,13:]; o,f,i,a=g.chunk(4,-1); c=sg(f-.25+h)*c+F.hardsigmoid(i)*F.hardtanh(a,-.8,.8); h=sg(o+c)*F.softsign(c); return h[0]-h[1],h.prod(0),c.transpose(0,1)
A("bilstm_einsum","product",bilstm_step,[(18,10),(2,18,26)],lambda:(P(2,10,52),))
def conv3dgru(c,x,h): y=c(torch.cat((x,h),1)); z,r,n=y[:,0::3],y[:,1::3],y[:,2::3]; z=sg(z); return z*h+(1-z)*F.elu(n+sg(r)*h,.7),z.amax((2,3,4))
A("convgru3d_strided","conv",conv3dgru,[(2,3,6,7,9),(2,5,6,7,9)],lambda:(nn.Conv3d(8,15,3,padding=1),))
def trajgru(c,x,h,fl): f=c(x); n=h.size(2); hs=torch.stack((h,h.roll(1,2),h.roll(-1,3),h.flip(3)),1); wt=fl.softmax(1)[:,:,None]; m=(hs*wt).sum(1); u,r=f.chunk(2,1); return sg(u)*m+(1-sg(u))*th(r*m)
A("warped_convgru","conv",trajgru,[(2,5,9,11),(2,7,9,11),(2,4,9,11)],lambda:(nn.Conv2d(5,14,3,padding=1,bias=False),))
def predrnn(cx,ch,cm,x,h,c,m):
    a=cx(x); i,f,g,i2,f2,g2,o=a.chunk(7,1); hi,hf,hg,ho=ch(h).chunk(4,1); mi,mf,mg=cm(m).chunk(3,1); c=sg(f+hf+1.)*c+sg(i+hi)*th(g+hg); m=sg(f2+mf+1.)*m+sg(i2+mi)*th(g2+mg); return sg(o+ho)*th(c-m),c,m
A("st_lstm","conv",predrnn,[(2,4,8,9),(2,6,8,9),(2,6,8,9),(2,6,8,9)],lambda:(nn.Conv2d(4,42,3,padding=1),nn.Conv2d(6,24,3,padding=1),nn.Conv2d(6,18,1)))
def raft_ctx(cz,cr,cq,h,x,ctx): z,r,q=ctx.chunk(3,1); hx=torch.cat((h,x),1); z=sg(cz(hx)+z); r=sg(cr(hx)+r); q=th(cq(torch.cat((r*h,x),1))+q); return (1-z)*h+z*q
A("raft_sepgru","conv",raft_ctx,[rf(2,8,7,11),rf(2,5,7,11),rf(2,24,7,11)],lambda:tuple(nn.Conv2d(13,8,(5,1),padding=(2,0)).half() for _ in range(3)))
def nlstm(w,x,h,c,cc,w2): g=w(torch.cat((x,h),1)); i,f,o,u=g.chunk(4,1); ii,ff,oo,uu=w2(torch.cat((sg(i)*th(u),sg(f)*c),1)).chunk(4,1); cc=sg(ff)*cc+sg(ii)*uu; c=sg(oo)*th(cc); return sg(o)*th(c),c,cc
A("nested_lstm","product",lambda w,w2,x,h,c,cc:nlstm(w,x,h,c,cc,w2),[(17,11),(17,14),(17,14),(17,14)],lambda:(L(25,56),L(28,56)))
def gridlstm(w,ha,hb,ca,cb): g=w(torch.cat((ha,hb),-1)).unflatten(-1,(2,4,12)); i,f,o,u=g.movedim(-2,0); c=torch.stack((ca,cb),1); c=sg(f)*c+sg(i)*u.tanh(); h=sg(o)*torch.tanh(c); return h[:,0]+ha,h[:,1]+hb,c.flatten(1)
A("grid_lstm","product",gridlstm,[rh(20,12),rh(20,12),rh(20,12),rh(20,12)],lambda:(L(24,96).bfloat16(),))
def skiprnn(w,wu,x,h,u): ub=(u>0.5).to(x.dtype); z,n=w(torch.cat((x,h),1)).chunk(2,1); s=ub*(sg(z)*h+(1-sg(z))*th(n))+(1-ub)*h; d=sg(wu(s)); return s,ub*d+(1-ub)*(u+torch.minimum(d,1-u))
A("skip_rnn","product",skiprnn,[(27,12),(27,19),lambda:torch.rand(27,1)],lambda:(L(31,38),L(19,1)))
def act(w,wp,s):
    acc=torch.zeros(s.shape[0],1); out=torch.zeros_like(s)
    for _ in range(3): s=th(w(s)); p=sg(wp(s)-1); still=(acc<.99).float(); p=torch.where(acc+p*still>=.99,1-acc,p)*still; acc=acc+p; out=out+p*s
    return out,acc
A("adaptive_compute","product",act,[(24,18)],lambda:(L(18,18),L(18,1)))
def clockwork(w,x,h,k): m=((k[:,None]%torch.tensor([1,2,4]).repeat_interleave(7))==0); n=th(w(torch.cat((x,h),1))); return torch.where(m,n,h),m.float().mean(1)
A("clockwork","product",clockwork,[(29,10),(29,21),ri(9,29)],lambda:(L(31,21),))
def dilated_skip(w,x,h): g=w(x).unflatten(2,(3,-1)); z,r,n=g.unbind(2); s=torch.cat((h[:,-2:],n[:,:-2].tanh()),1); return sg(z)*s+(1-sg(z))*th(n+sg(r)*s.flip(-1)),(s-h).abs().sum((1,2))
A("dilated_gate_shift","product",dilated_skip,[(4,13,15),(4,13,18)],lambda:(L(15,54),))
def ema_resid(a,w,x): d=sg(a)[:,None]**torch.arange(9,dtype=torch.float); k=d*(1-sg(a)[:,None]); y=(F.pad(x.mT,(8,0)).unfold(2,9,1)*k.flip(1)[:,None]).sum(-1).mT; g=w(y-x); return x+g.tanh()*y
A("ema_window_unfold","product",ema_resid,[(3,21,16)],lambda:(P(16),L(16,16)))
def ttt(W,lr,q,k,v): p=k@W; e=p-v; g=k.mT@e*(2/e[0].numel()); e2=sg(lr)*.5; W2=W-e2*g; z=q@W2; mu=z.mean(-1,keepdim=True); return q+(z-mu)/torch.sqrt(z.var(-1,keepdim=True,correction=0)+1e-5),e.square().mean((1,2))
A("ttt_linear","product",ttt,[(4,18,14),(4,18,14),(4,18,14)],lambda:(P(14,14),P(1)))
def emcaps(W,bu,ba,po,a): v=torch.einsum("icrs,bist->bicrt",W,po.unflatten(-1,(3,3))).flatten(-2); r=torch.ones_like(v[...,0])/5; ra=r*a[...,None]; s=ra.sum(1,keepdim=True)+1e-6; mu=(ra[...,None]*v).sum(1,keepdim=True)/s[...,None]; sig=(ra[...,None]*(v-mu).square()).sum(1,keepdim=True)/s[...,None]+1e-4; ac=sg(.3*(ba-((bu+.5*sig.log())*s[...,None]).sum(-1))); lp=-((v-mu).square()/(2*sig)).sum(-1)-.5*sig.log().sum(-1); return (torch.log(ac+1e-6)+lp).softmax(2),mu.squeeze(1)
A("em_capsules","reduction",emcaps,[(3,13,9),lambda:torch.rand(3,13)],lambda:(P(13,5,3,3),P(1),P(5)))
def dynconv(w,wg,x): a,g=wg(x).chunk(2,-1); y=a*sg(g); k=w(y).unflatten(-1,(4,5)).softmax(-1); u=F.pad(y.mT,(4,0)).unfold(2,5,1).unflatten(1,(4,-1)); return torch.einsum("bhctk,bthk->bthc",u,k).flatten(2)
A("dynamic_conv","product",dynconv,[(2,19,15)],lambda:(L(24,20),L(15,48)))
def invol(c1,c2,x): k=c2(F.relu(c1(x))).unflatten(1,(2,9)); u=F.unfold(x,3,padding=1).view(x.size(0),2,-1,9,*x.shape[2:]); return (k[:,:,None]*u).sum(3).flatten(1,2)
A("involution","conv",invol,[(2,10,8,11)],lambda:(nn.Conv2d(10,6,1),nn.Conv2d(6,18,1)))
def condconv(r,W,x): a=sg(r(x.mean((2,3)))); k=torch.einsum("be,eoi->boi",a,W); y=torch.einsum("boi,bihw->bohw",k,x); return F.silu(y)-y.mean((2,3),keepdim=True),a
A("condconv_einsum","product",condconv,[(3,9,10,13)],lambda:(L(9,4),P(4,14,9)))
def sk(a,b,f,g,x): u,v=F.relu(a(x)),F.relu(b(x)); s=(u+v).mean((2,3)); w=g(F.relu(f(s))).unflatten(1,(2,-1)).softmax(1)[...,None,None]; return w[:,0]*u+w[:,1]*v,(u*v).flip(2).sum(1)
A("selective_kernel","conv",sk,[(2,6,11,12)],lambda:(nn.Conv2d(6,14,3,padding=1),nn.Conv2d(6,14,3,padding=2,dilation=2),L(14,5),L(5,28)))
def coordatt(c,ch,cw,x): n=x.size(2); y=torch.cat((x.mean(3,keepdim=True),x.mean(2,keepdim=True).mT),2); y=F.hardswish(c(y)); a,b=y.split((n,x.size(3)),2); return x*sg(ch(a))*sg(cw(b.mT))
A("coord_attention","conv",coordatt,[(2,12,9,14)],lambda:(nn.Conv2d(12,7,1),nn.Conv2d(7,12,1),nn.Conv2d(7,12,1)))
def tripletatt(ca,cb,x): z=lambda t:torch.cat((t.amax(1,keepdim=True),t.mean(1,keepdim=True)),1); p=x.permute(0,2,1,3); q=x.permute(0,3,2,1); return (p*sg(ca(z(p)))).permute(0,2,1,3)*.5+(q*sg(cb(z(q)))).permute(0,3,2,1)*.5
A("triplet_attention","conv",tripletatt,[(2,8,11,13)],lambda:(nn.Conv2d(2,1,5,padding=2),nn.Conv2d(2,1,3,padding=1)))
def evonorm_gate(w,x,z): v=x.unflatten(1,(3,4)); s=(v.var((2,3,4,5),keepdim=True)+1e-5).sqrt(); y=(v*sg(v*1.3)/s).flatten(1,2); a,b=w(z).chunk(2,1); return y*(1+a)[...,None,None,None]+b[...,None,None,None]*x.amax((2,3,4),keepdim=True)
A("group_swish5d_film","norm",evonorm_gate,[(2,12,5,6,7),(2,9)],lambda:(L(9,24),))
def mixhead(w,x,sc): q,k,v,g=w(x).view(2,14,4,3,7).permute(2,0,3,1,4); s=torch.einsum("bhid,bhjd->hbij",q*sc,rms(k)); s=torch.where(s>0,s,s*.01)-(torch.arange(14)[:,None]-torch.arange(14)).abs()*.125; p=s.exp()/(1+s.exp().sum(-1,keepdim=True)); return torch.einsum("hbij,bhjd->bihd",p,v)*F.silu(g).transpose(1,2)
A("softmax1_gate","product",lambda w,sc,x:mixhead(w,x,sc),[(2,14,20)],lambda:(L(20,84),P(3,1,7)))
def mla(wd,wuk,wuv,wq,x): y=wd(x); c,kr=y[...,:14],y[...,14:]; c=rms(c); q=heads(wq(x),3); qn,qr=q[...,:8],q[...,8:]; t=torch.arange(x.size(1))[:,None]*torch.tensor([1.,.1,.01]); cs,sn=t.cos(),t.sin(); ro=lambda z:torch.cat((z[...,:3]*cs-z[...,3:]*sn,z[...,3:]*cs+z[...,:3]*sn),-1); s=qn@heads(wuk(c),3).mT+ro(qr)@ro(kr)[:,None].mT; return (s*14**-.5).masked_fill(causal(x.size(1)),-1e9).softmax(-1)@heads(wuv(c),3)
A("latent_attn","product",mla,[(2,13,22)],lambda:(L(22,20),L(14,24),L(14,27),L(22,42)))
def perceiver(lat,wk,wq,ln,x,m): kv=wk(ln(x)); k,v=kv.chunk(2,-1); q=wq(lat).expand(x.size(0),-1,-1); s=torch.baddbmm(torch.where(m,0.,-1e4)[:,None].expand(-1,q.size(1),-1),q,k.mT,alpha=.25); return lat+F.gelu(s.softmax(-1)@v)
A("perceiver_latents","product",perceiver,[(3,26,14),rb(.8,3,26)],lambda:(P(6,17),L(14,34),L(17,17),nn.LayerNorm(14)))
def deform(wo,wa,v,q): o=wo(q).unflatten(-1,(2,5)); a=wa(q).softmax(-1); pos=torch.arange(v.size(1),dtype=v.dtype); d=(o[...,0,:,None]*3+8-pos).abs(); wt=F.relu(1-d)*a[...,None]; return wt.sum(2)@v,(o[:,:,1]*a).sum(-1)
A("hat_sampling","product",lambda wo,wa,v,q:deform(wo,wa,v,q),[(3,19,14),(3,11,16)],lambda:(L(16,10),L(16,5)))
def gmmattn(w,x,kp,mem): a,b,k=w(x).exp().clamp(max=20).chunk(3,1); k=kp+k*.1; u=torch.arange(mem.size(1)); ph=(a[...,None]*torch.exp(-b[...,None]*(k[...,None]-u).square())).sum(1,keepdim=True); return torch.bmm(ph,mem).squeeze(1),k
A("graves_window","product",gmmattn,[(7,13),(7,5),(7,17,12)],lambda:(L(13,15),))
def locsens(wq,cv,wl,v,q,mem,al): f=wl(cv(torch.stack((al.softmax(1),al.cumsum(1)*.1),1)).mT); e=(th(wq(q)[:,None]+mem+f)*v).sum(-1); a=sg(e)/sg(e).sum(1,keepdim=True); return a,(a[...,None]*mem).sum(1)
A("location_sensitive","conv",locsens,[(5,12),(5,21,15),(5,21)],lambda:(L(12,15),nn.Conv1d(2,6,7,padding=3,bias=False),L(6,15,bias=False),P(15)))
def monoattn(e,al): p=sg(e); c=torch.cumprod((1-p).clamp(1e-5,1.),-1); c=F.pad(c,(1,-1),value=1.); return p*c*torch.cumsum(al/c.clamp_min(1e-6),-1)
A("monotonic","scan",monoattn,[(14,25),(14,25)])
def bidaf(w1,w2,w3,c,q,cm,qm): s=(c*w1).sum(-1,keepdim=True)+(q*w2).sum(-1)[:,None]+torch.einsum("bid,bjd->bij",c*w3,q); s1=s.masked_fill(~qm[:,None],-1e30).softmax(2); b=s.amax(2).masked_fill(~cm,-1e30).softmax(1); u=s1@q; h=(b[...,None]*c).sum(1,keepdim=True); return torch.cat((c,u,c*u,c*h),-1)
A("bidaf","product",bidaf,[(2,21,12),(2,14,12),rb(.9,2,21),rb(.9,2,14)],lambda:(P(12),P(12),P(12)))
def decompatt(wf,a,b): e=F.relu(wf(a))@F.relu(wf(b)).mT; be=e.softmax(2)@b; al=e.softmax(1).mT@a; return F.relu(a-be)-be.abs().sqrt(),torch.maximum(b,al)
A("decomposable","product",decompatt,[(3,13,14),(3,18,14)],lambda:(L(14,19),))
def coattn(W,q,d): Lm=th(d@W@q.mT); aq,ad=Lm.softmax(1),Lm.mT.softmax(1); cq=d.mT@aq; return torch.cat((q.mT,cq),1)@ad,Lm.amax(2)-Lm.amin(1).mean(1,keepdim=True)
A("coattention","product",coattn,[(2,12,15),(2,20,15)],lambda:(P(15,15),))
def dincell(w1,w2,q,h,m): qq=q[:,None].expand_as(h); a=sg(w1(torch.cat((qq,h,qq-h,qq*h),-1))); s=w2(a).squeeze(-1)*m; p=torch.cat((q,(s[...,None]*h).sum(1)),1); return p,s
A("din_unit","product",dincell,[(6,11),(6,15,11),rb(.7,6,15)],lambda:(L(44,14),L(14,1)))
def augru(w,u,x,h,a): xr,xz,xn=w(x).chunk(3,1); hr,hz,hn=u(h).chunk(3,1); z=sg(xz+hz)*a[:,None]; return (1-z)*h+z*th(xn+sg(xr+hr)*hn)
A("augru","product",augru,[rh(31,14),rh(31,20),rh(31)],lambda:(L(14,60).bfloat16(),L(20,60).bfloat16()))
def dcn2(U,V,C,g,x):
    x0=x
    for _ in range(2): gt=g(x).softmax(1); v=th(torch.einsum("bd,erd->ber",x,V)); v=th(torch.einsum("ber,ers->bes",v,C)); x=x+((x0[:,None]*torch.einsum("ber,edr->bed",v,U))*gt[...,None]).sum(1)
    return x
A("dcnv2_mix","product",dcn2,[(25,18)],lambda:(P(3,18,5),P(3,5,18),P(3,5,5),L(18,3)))
def lhuc_gate(w,wg,x,s): a=2*sg(wg(s)); y=w(x*a[:,None]); p,q,r=y.unflatten(2,(-1,3)).unbind(-1); return torch.where(p>q,p*r,q-r)+y[...,::3].clamp(-.5,.5),(p*q).logsumexp(2)
A("lhuc_interleave3","product",lhuc_gate,[rf(3,14,16),rf(3,9)],lambda:(L(16,63).half(),L(9,16).half()))
def ple(e,gs,x): h=F.relu(e(x)).view(x.size(0),5,-1); g=gs(x); a=g[:,:3].softmax(1); b=g[:,3:6].softmax(1); c=g[:,6:].softmax(1); return (h[:,:3]*a[...,None]).sum(1),(h[:,2:]*b[...,None]).sum(1),(h*c[...,None]).sum(1)
A("ple_gates","product",ple,[(29,14)],lambda:(L(14,60),L(14,11)))
# ---- last: gates read in odd ways, 5 axes, backward heavy
def six(w,x,y):
    a=w(x).unflatten(-1,(6,11)); g=lambda k:a[...,k,:]; u=sg(g(5))*g(0)+(1-sg(g(5)))*y; v=F.softplus(g(2)-1)*u.roll(2,-1); s=(v*g(3)).sum(-1,keepdim=True)*11**-.5
    return u+v*th(s),torch.where(g(4)>g(1),g(4)-s,g(1).square()*.5),s.squeeze(-1)
A("six_gates_mixed","product",six,[(3,15,14),(3,15,11)],lambda:(L(14,66),))
def roughgate(w,x): y=w(x); a=y[:,:,:12]; b=y[:,:,12:24]; c=y[:,:,20:32]; d=y[:,:,31:43]; return a*sg(b)+F.pad(c[:,1:],(0,0,0,1))*sg(-b)-d.clamp_min(0)**1.5,(a-d).amin(1)
A("overlapping_slices","product",roughgate,[(2,17,19)],lambda:(L(19,43),))
def fliphead(w,x): q,k,g=w(x).unflatten(-1,(3,2,9)).unbind(2); s=torch.cat((q[:,:,:1],k[:,:,1:].flip(1)),2); t=(s*g.transpose(2,3).flip(2).transpose(2,3)).cumsum(1); return t/(g.abs().cumsum(1)+1e-3),s.permute(2,0,3,1)*1.5
A("flipped_heads_scan","product",fliphead,[(2,16,13)],lambda:(L(13,54),))
def quadgate(w,x): a,b,c,d=w(x).unflatten(1,(2,2,-1)).flatten(1,2).unbind(1); n=(a*a+b*b+c*c+d*d+1e-8).rsqrt(); a,b,c,d=a*n,b*n,c*n,d*n; return torch.stack((a*b-c*d,a*c+b*d,a*d-b*c),-1),torch.atan2(2*(a*b+c*d),1-2*(b*b+c*c))
A("quaternion_gates","product",quadgate,[(23,12)],lambda:(L(12,60),))
def cplxattn(w,x): qr,qi,kr,ki,v=w(x).chunk(5,-1); re=qr@kr.mT+qi@ki.mT; im=qi@kr.mT-qr@ki.mT; mag=(re.square()+im.square()+1e-6).sqrt(); p=(mag*.2).softmax(-1); return torch.cat(((p*re/mag)@v,(p*im/mag)@v),-1)
A("complex_attention","product",cplxattn,[(3,17,14)],lambda:(L(14,55),))
def xpos(w,x): q,k=w(x).unflatten(-1,(2,2,6,2)).unbind(2); n=x.size(1); t=torch.arange(n)-n//2; sc=((torch.arange(6)*2+4.8)/16.8)**(t[:,None]/64); th_=t[:,None]*10000.**(-torch.arange(6)/6); c,s=th_.cos()[:,None],th_.sin()[:,None]; r=lambda z,m:torch.stack(((z[...,0]*c-z[...,1]*s)*m,(z[...,1]*c+z[...,0]*s)*m),-1); return r(q,sc[:,None]).flatten(3),r(k,1/sc[:,None]).flatten(3).permute(0,2,3,1)
A("xpos","product",xpos,[(2,14,17)],lambda:(L(17,48),))
def rope2d(w,x): q=w(x).unflatten(-1,(3,12)); h,wd=x.shape[1:3]; f=1/torch.tensor([1.,5.,25.]); ay=(torch.arange(h)[:,None]*f)[:,None].expand(-1,wd,-1); ax=(torch.arange(wd)[:,None]*f)[None].expand(h,-1,-1); a=torch.cat((ay,ax),-1)[:,:,None]; e,o=q[...,0::2],q[...,1::2]; return torch.stack((e*a.cos()-o*a.sin(),e*a.sin()+o*a.cos()),-1).flatten(-2)+q.mean(-2,keepdim=True)
A("rope_2d_axial","product",rope2d,[(2,6,9,14)],lambda:(L(14,36),))
def mrope(q,k,p): f=torch.exp(-torch.arange(7)*.8); a=p[...,None]*f; a=torch.cat((a[0,...,:3],a[1,...,3:5],a[2,...,5:]),-1); a=torch.cat((a,a),-1)[:,None]; c,s=a.cos(),a.sin(); return (rot_half(q,c,s)*c.size(-1)**-.5)@rot_half(k,c,s).mT
A("mrope_sections","product",mrope,[(2,3,15,14),(2,3,15,14),lambda:torch.randint(0,20,(3,2,15)).float()])
def bigbird(q,k,m): n=q.size(2); i=torch.arange(n); g=(i<2); mask=((i[:,None]//3-i//3).abs()<=1)|g[:,None]|g|m[:,None]; s=torch.einsum("bhid,bhjd->bhij",q,k).div(3.3); s=torch.where(mask[None,None],s,-65000.); z=s.logsumexp(-1,keepdim=True); return (s-z).exp(),z.squeeze(-1),(s*mask).sum((-2,-1))
A("global_block_mask","product",bigbird,[rf(2,3,18,11),rf(2,3,18,11),rb(.1,18)])
def docmask(w,x,seg): q,k,v=w(x).chunk(3,-1); m=(seg[:,:,None]==seg[:,None])&(torch.arange(x.size(1))[:,None]>=torch.arange(x.size(1))); s=(q@k.mT*.25).masked_fill(~m,float("-inf")); p=s.softmax(-1); return p@v,m.sum(-1),-(p*p.clamp_min(1e-9).log()).sum(-1)
A("document_mask","product",docmask,[(3,19,14),ri(3,3,19)],lambda:(L(14,48),))
def alibi_sym(q,k,v,le): s=torch.einsum("bqhd,bkhd->bhqk",q,k); n=q.size(1); d=torch.arange(n)[:,None]-torch.arange(n); sl=2.**-torch.arange(1,q.size(2)+1); s=s*.3-sl[:,None,None]*torch.where(d<0,d.abs()*1.5,d*1.)-1e9*(torch.arange(n)>=le[:,None])[:,None,None]; return torch.einsum("bhqk,bkhd->bqhd",s.softmax(-1),v)
A("alibi_lengths","product",alibi_sym,[(3,16,4,9),(3,16,4,9),(3,16,4,10),lambda:torch.randint(5,17,(3,))])
def kvcache(wq,wk,x,kc,vc,pos): q=heads(wq(x),3); k,v=(t[:,:,0][:,:,None] for t in heads(wk(x),6).unflatten(1,(3,2)).transpose(1,2).unbind(1)); sel=(torch.arange(kc.size(2))==pos[:,None])[:,None,:,None]; kc=torch.where(sel,k,kc); vc=torch.where(sel,v,vc); s=(q@kc.mT*.3).masked_fill((torch.arange(kc.size(2))>pos[:,None])[:,None,None],-1e9); return s.softmax(-1)@vc,kc
A("kv_cache_step","product",kvcache,[(4,1,18),(4,3,17,10),(4,3,17,10),ri(17,4)],lambda:(L(18,30),L(18,60)),train=False)
def attnresid(w1,w2,x,pa): q,k=w1(x).chunk(2,-1); s=heads(q,3)@heads(k,3).mT*.4+pa; a=s.softmax(-1); sy=.5*(a+a.mT); dg=sy.diagonal(dim1=-2,dim2=-1); return s,(sy-torch.diag_embed(dg))@heads(w2(x),3),dg.amax(1)
A("residual_scores_sym","product",attnresid,[(2,14,20),(2,3,14,14)],lambda:(L(20,42),L(20,24)))
def nystrom(q,k,v): ql=q.unflatten(2,(5,4)).mean(3); kl=k.unflatten(2,(5,4)).mean(3); a=(q@kl.mT*.3).softmax(-1); b=(ql@kl.mT*.3).softmax(-1); c=(ql@k.mT*.3).softmax(-1); z=b.mT/b.abs().sum(-2).amax(-1)[...,None,None]; i=torch.eye(5); bz=b@z; z=.25*z@(13*i-bz@(15*i-bz@(7*i-bz))); return (a@z)@(c@v)+v*.1
A("nystrom","product",nystrom,[(2,3,20,9),(2,3,20,9),(2,3,20,9)])
def linformer(E,Fm,w,x): q,k,v=w(x).chunk(3,-1); k=torch.einsum("nk,bnd->bkd",E,k); v=torch.einsum("nk,bnd->bkd",Fm,v); q,k,v=(heads(t,2) for t in (q,k,v)); return ((q@k.mT)*.35).softmax(-1)@v+q[...,:9]
A("linformer","product",linformer,[(2,23,16)],lambda:(P(23,7),P(23,7),L(16,54)))
def hourglass(w,x): a,b=w(x.unflatten(1,(6,3)).mean(2)).chunk(2,-1); s=(a@b.mT*.2).masked_fill(causal(6),-1e9).softmax(-1)@b; u=F.pad(s.repeat_interleave(3,1),(0,0,2,-2)); return x[...,:10]*sg(u)+u
A("hourglass_shift","product",hourglass,[(3,18,14)],lambda:(L(14,20),))
def mamba2step(w,c,nw,x,s):
    z,xb,dt=w(x).split((14,26,2),-1); xb=F.silu(c(F.pad(xb.mT,(3,0))).mT); xs,B,C=xb.split((14,6,6),-1); dt=F.softplus(dt-2); a=torch.exp(-dt*torch.tensor([1.,2.])); xs=xs.unflatten(-1,(2,7)); o=[]
    for t in range(3): s=s*a[:,t,:,None,None]+(dt[:,t,:,None]*xs[:,t])[...,None]*B[:,t,None,None]; o.append((s*C[:,t,None,None]).sum(-1).flatten(1))
    y=torch.stack(o,1); return rms(y*F.silu(z))*nw,s
A("mamba2_steps","product",mamba2step,[(5,3,15),(5,2,7,6)],lambda:(L(15,42),nn.Conv1d(26,26,4,groups=26),P(14)))
def vmamba4(w,x,d): y=torch.stack((x.flatten(2),x.mT.flatten(2),x.flatten(2).flip(-1),x.mT.flatten(2).flip(-1)),1); z=torch.einsum("bkdl,kcd->bkcl",y,w); a,b=z.chunk(2,2); h=(sg(a)*b).cumsum(-1)*.1+d[:,:,None]*b; n=x.shape; f=lambda t:t.view(n[0],-1,n[3],n[2]).mT.flatten(2); return h[:,0]+f(h[:,1])+h[:,2].flip(-1)+f(h[:,3].flip(-1))
A("cross_scan4","scan",lambda w,d,x:vmamba4(w,x,d),[(2,8,5,9)],lambda:(P(4,14,8),P(4,7)))
def minlstm(w,x,h): f,i,u=w(x).chunk(3,-1); df=F.softplus(-f)-F.softplus(-i); lf=-F.softplus(df); li=-F.softplus(-df); lh=torch.where(u>=0,torch.log(F.relu(u)+.5),-F.softplus(-u)); a=F.pad(lf.cumsum(1),(0,0,1,0)); v=torch.cat((torch.log(h.abs()+.1)[:,None],li+lh),1); return torch.exp(a+(v-a).exp().cumsum(1).log())[:,1:]
A("minlstm_logspace","scan",minlstm,[(3,14,15),(3,18)],lambda:(L(15,54),))
def mingru(w,x): z,n=w(x).chunk(2,-1); lz=-F.softplus(-z); lc=-F.softplus(z); g=torch.where(n>=0,n+.5,sg(n)); a=lc.cumsum(1); m=lz+g.log()-a; return torch.exp(a)*torch.cumsum(m.exp(),1)+x[...,:13]
A("mingru_cumsum","scan",mingru,[(3,17,16)],lambda:(L(16,26),))
def hgrn2(w,lb,x,h):
    i,f,g=w(x).chunk(3,-1); l=lb.softmax(0).cumsum(0)[1]; f=l+(1-l)*sg(f); u=F.silu(i)*(1-f); o=[]
    for t in range(4): h=f[:,t]*h+u[:,t]; o.append(h)
    y=torch.stack(o,1); return F.layer_norm(y,(21,))*sg(g)+(1-sg(g))*y.mean(1,keepdim=True)
A("hgrn_lower_bound","scan",hgrn2,[(6,4,14),(6,21)],lambda:(L(14,63),P(3,21)))
def rwkv7(r,w,k,v,a,S):
    kk=F.normalize(k,dim=-1); w=torch.exp(-.606531*sg(w)); a=sg(a); k=k*(1+(a-1)*.7); o=[]
    for t in range(2): sa=(S*-kk[:,t,:,None]).sum(-1,keepdim=True); S=S*w[:,t,:,None]+sa*(kk*a)[:,t,:,None]+v[:,t,...,None]*k[:,t,:,None]; o.append((S*r[:,t,:,None]).sum(-1))
    y=torch.stack(o,1); return (y-y.mean(-1,True))*(y.var(-1,keepdim=True,unbiased=False)+6.4e-4).rsqrt()+(r*k).sum(-1,keepdim=True)*v,S
A("rwkv7_state","scan",rwkv7,[(2,2,3,10)]*5+[(2,3,10,10)])
def headnorm(w,g,b,wo,x): o,z=w(x).chunk(2,-1); h=o.unflatten(-1,(5,6)); m=h.mean(-1,keepdim=True); s=h.square().mean(-1,keepdim=True)-m*m; h=((h-m)/(s.clamp_min(0)+1e-5).sqrt()).flatten(2)*g+b; return wo(h*F.gelu(z))+x,m.squeeze(-1)
A("head_groupnorm_gate","product",headnorm,[rh(2,16,20)],lambda:(L(20,60).bfloat16(),nn.Parameter(R(30).bfloat16()),nn.Parameter(R(30).bfloat16()),L(30,20).bfloat16()))
def pkm(w,k1,k2,x): q=w(x).unflatten(-1,(2,2,8)); q=(q-q.mean(0))*(q.var(0)+1e-5).rsqrt(); s1=(torch.einsum("nhd,hkd->nhk",q[:,:,0],k1)*.5).softmax(-1); s2=(torch.einsum("nhd,hkd->nhk",q[:,:,1],k2)*.5).softmax(-1); return (s1[...,:,None]*s2[...,None,:]).flatten(2).sum(1),(s1*s2).amax(-1)
A("product_keys_dense","product",pkm,[(18,14)],lambda:(L(14,32),P(2,7,8),P(2,7,8)))
def vqsoft(cb,x,t): d=x.square().sum(-1,keepdim=True)-2*x@cb.T+cb.square().sum(-1); p=(-d/t).softmax(-1); h=F.one_hot(d.argmin(-1),cb.size(0)).to(x.dtype); z=h@cb; zq=x+(z-x).detach(); m=p.mean((0,1)); return zq,(z.detach()-x).square().mean()*.25+(z-x.detach()).square().mean(),torch.exp(-(m*(m+1e-10).log()).sum())
A("vq_straight","product",lambda cb,x:vqsoft(cb,x,.7),[(3,15,10)],lambda:(P(17,10),))
def setgate(w,wg,x,m): n=m.sum(1,keepdim=True).clamp_min(1).to(x.dtype); mx=x.masked_fill(~m[...,None],-1e4).amax(1); mn=(x*m[...,None]).sum(1)/n; y=w(x)+wg(torch.cat((mx,mn),1))[:,None]; a,b=y[...,:14],y[...,14:]; return (a*sg(b)).masked_fill(~m[...,None],0),F.softmax(b.masked_fill(~m[...,None],-1e4),1)
A("deepset_gate","product",setgate,[(4,16,12),rb(.8,4,16)],lambda:(L(12,28),L(24,28)))
def egnn(we,wc,wx,h,x,m): r=x[:,:,None]-x[:,None]; d=r.square().sum(-1,keepdim=True); n=h.size(1); e=F.silu(we(torch.cat((h[:,:,None].expand(-1,-1,n,-1),h[:,None].expand(-1,n,-1,-1),d),-1))); g=sg(e.mean(-1,keepdim=True)); e=e*g*m[...,None]; c=th(wc(e)); return x+(r/(d+1).sqrt()*c).sum(2)/(n-1),h+wx(e.sum(2))
A("egnn_layer","product",egnn,[(2,9,10),(2,9,3),rb(.7,2,9,9)],lambda:(L(21,14),L(14,1,bias=False),L(14,10)))
def schnet(w1,w2,wf,x,pos): d=((pos[:,:,None]-pos[:,None]).square().sum(-1)+1e-6).sqrt(); mu=torch.linspace(0,5,11); rb_=torch.exp(-1.7*(d[...,None]-mu).square()); c=.5*(torch.cos(d*math.pi/5)+1)*(d<5); f=(F.softplus(wf(rb_))-math.log(2))*c[...,None]; return x+w2(F.softplus((w1(x)[:,None]*f).sum(2))-math.log(2))
A("schnet_cfconv","product",schnet,[(2,10,14),(2,10,3)],lambda:(L(14,16,bias=False),L(16,14),L(11,16)))
def bayes_lstm(w,rho,x,h,c,eps): W=w+F.softplus(rho)*eps; g=torch.cat((x,h),1)@W; i,f=g[:,:17].sigmoid(),g[:,17:34].sigmoid(); u,o=g[:,34:51].tanh(),sg(g[:,51:]); c=torch.addcmul(f*c,i,u); return o*c.tanh(),(rho.square()*.5-F.softplus(rho).log()).sum(0)
A("variational_lstm","product",bayes_lstm,[(22,10),(22,17),(22,17),(27,68)],lambda:(P(27,68),P(27,68)))
def lowrank_gate(a,b,x,h): z=torch.einsum("bi,gir,gro->gbo",torch.cat((x,h),1),a,b); z=z-z.mean(0,keepdim=True); r,u,n=z.unbind(0); return torch.where(u.abs()<.5,h,th(r*n)),(r-u).pow(2).sum(0)
A("lowrank_gates","product",lowrank_gate,[(24,11),(24,18)],lambda:(P(3,29,5),P(3,5,18)))
def tgate(w,x,m): y=w(x.transpose(1,2)); a,b,c=y.transpose(1,2).tensor_split([13,26],1); a=a.masked_fill(m[:,None],0.); s=a.cumsum(2)/(torch.arange(a.size(2))+1); return s*sg(b)+c.flip(2).cumsum(2).flip(2)*.05,F.softmax(c,1)[:,:,::2]
A("causal_mean_gate","scan",tgate,[(3,16,21),rb(.2,3,21)],lambda:(L(16,39),))
def infini(q,k,v,M_,z,be): sq=F.elu(q)+1; sk=F.elu(k)+1; am=(sq@M_)/(sq@z[...,None]+1e-6); dl=v-(sk@M_)/(sk@z[...,None]+1e-6); al=(q@k.mT*.3).masked_fill(causal(q.size(2)),-1e9).softmax(-1)@v; g=sg(be)[:,None,None]; return g*am+(1-g)*al,M_+sk.mT@dl,z+sk.sum(2)
A("infini_attention","product",lambda be,q,k,v,M_,z:infini(q,k,v,M_,z.abs()+1,be),[(2,3,15,8),(2,3,15,8),(2,3,15,10),(2,3,8,10),(2,3,8)],lambda:(P(3),))
def mixer_gate(w1,w2,x): b,t,h,w_,c=x.shape; a=torch.einsum("bthwc,st->bshwc",rms(x),w1); u,v=w2(x).chunk(2,-1); return x+a*sg(u)-F.relu(v).permute(0,1,3,2,4).flip(2).permute(0,1,3,2,4)*.3,(a*v).mean((2,3))
A("video_mixer5d","product",mixer_gate,[(2,5,4,6,9)],lambda:(P(5,5),L(9,18)))
def factattn(w,x): q,k,v=w(x).chunk(3,-1); s=torch.einsum("bthwc,bshwc->bhwts",q,k)*.3; i=torch.arange(x.size(1)); s=s-F.relu(i[:,None]-i)*.25; s=s.masked_fill(i[:,None]<i,float("-inf")).softmax(-1); o=torch.einsum("bhwts,bshwc->bthwc",s,v); return o*torch.rsqrt(o.square().mean((2,3),keepdim=True)+1e-5)
A("temporal_attn5d","product",factattn,[(2,5,4,6,8)],lambda:(L(8,24),))
def lstm_proj(wx,wh,wp,x,h,c): 
    o=[]
    for t in range(2):
        g=(wx(x[t])+wh(h)).view(-1,19,4); c=sg(g[...,2])*c.clamp(-2,2)+sg(g[...,0])*th(g[...,3]); h=wp(sg(g[...,1])*th(c)).clamp(-1,1); o.append(h)
    return torch.cat(o,1),c
A("lstmp_clip","product",lstm_proj,[rh(2,15,12),rh(15,10),rh(15,19)],lambda:(L(12,76).bfloat16(),L(10,76,bias=False).bfloat16(),L(19,10,bias=False).bfloat16()))
def attn_gru(wa,wi,wh,F_,q,h,m):
    z=wa(torch.cat((F_*q[:,None],(F_-h[:,None]).abs()),-1)).squeeze(-1).masked_fill(m,-1e9); g=z.softmax(1)
    for t in range(3): r,n=wi(F_[:,t]).chunk(2,1); u,v=wh(h).chunk(2,1); h=g[:,t:t+1]*th(n+sg(r+u)*v)+(1-g[:,t:t+1])*h
    return h,g
A("dmn_attn_gru","product",attn_gru,[(12,5,13),(12,13),(12,13),rb(.2,12,5)],lambda:(L(26,1),L(13,26),L(13,26,bias=False)))
def entnet(U,V,W,key,h,s): g=sg(torch.einsum("bd,bkd->bk",s,h)+torch.einsum("bd,kd->bk",s,key)); c=F.prelu(h@U+(key@V)[None]+(s@W)[:,None],torch.tensor(.1)); h=h+g[...,None]*c; return h*torch.rsqrt(h.square().sum(-1,keepdim=True)+1e-8),g
A("entity_net","product",entnet,[(5,7,14),(5,14)],lambda:(P(14,14),P(14,14),P(14,14),P(7,14)))
def rmc(w,m,wm,x): mi=torch.cat((m,x[:,None]),1); q,k,v=w(mi).unflatten(-1,(2,3,-1))[...,0,:,:].split((5,5,8),-1); q,k,v=(t.transpose(1,2) for t in (q,k,v)); a=((q*5**-.5)@k.mT).softmax(-1)@v; n=m+F.pad(a.transpose(1,2).flatten(2)[:,:-1],(0,2)); i,f=(wm(x)[:,None]+th(m)@torch.ones(26,52)*.02).chunk(2,-1); return sg(i)*th(n)+sg(f+1)*m
A("relational_memory","product",lambda w,wm,m,x:rmc(w,m,wm,x),[(6,4,26),(6,26)],lambda:(L(26,108),L(26,52)))
def mac_read(wm,wk,wc,m,k,c): p=wm(m)[:,None,None]*wk(k); i=F.elu(wc(torch.cat((p,k),-1)))*c[:,None,None]; a=i.sum(-1,keepdim=True).flatten(1,2).softmax(1); return (a*k.flatten(1,2)).sum(1),a.view(k.shape[:3]).amax(1)
A("mac_read","product",mac_read,[(3,14),(3,6,7,14),(3,14)],lambda:(L(14,14),L(14,14),L(28,14)))
def relnet(g,x,q): n=x.size(1); p=g[0](x)[:,:,None]+g[1](x)[:,None]+g[2](q)[:,None,None]; h=F.relu(p); h=h*(1-torch.eye(n))[...,None]; return F.gelu(g[3](h)).sum((1,2))/(n*(n-1)),h.amax((1,2))
A("relation_net","product",lambda a,b,c,d,x,q:relnet((a,b,c,d),x,q),[(3,9,11),(3,7)],lambda:(L(11,18),L(11,18),L(7,18),L(18,14)))
def arma(w,x,h1,h2): a,b,g=w(x).chunk(3,1); a=th(a)*.9; b=th(b)*(1-a.abs()); y=a*h1+b*h2+F.mish(g); return y,(y-h1).square()*sg(a-b),torch.hypot(a,b+.1)
A("ar2_gated","product",arma,[(34,13),(34,21),(34,21)],lambda:(L(13,63),))
def kalman(w,m,p,x,r): q,k,o=w(m).chunk(3,-1); mp=m+.1*th(k); pp=p*sg(q)**2+.01; s=pp+F.softplus(r)+1e-3; g=pp/s; e=x-mp-o*.05; return mp+g*e,(1-g)*pp,-.5*(e.square()/s+s.log()+math.log(2*math.pi)).sum(-1)
A("kalman_cell","product",lambda w,r,m,p,x:kalman(w,m,p,x,r),[(21,18),lambda:torch.rand(21,18)+.1,(21,18)],lambda:(L(18,54),P(18)))
def rssm(w,u,x,h,e): r,z,n=F.layer_norm(w(torch.cat((x,h),1)),(51,)).chunk(3,1); r=sg(r); n=th(r*n); z=sg(z-1); h=z*n+(1-z)*h; l=u(h).unflatten(1,(4,6)); p=.99*l.softmax(-1)+.01/6; k=F.one_hot((p.log()+e).argmax(-1),6).to(p.dtype); return h,k+p-p.detach(),-(p*p.log()).sum((1,2))
A("rssm_unimix","product",rssm,[(23,11),(23,17),(23,4,6)],lambda:(L(28,51),L(17,24)))
def gae(w,x,r,d):
    v=w(x).squeeze(-1); dl=r+.99*d*v[:,1:]-v[:,:-1]; a=torch.zeros_like(dl[:,0]); o=[]
    for t in (3,2,1,0): a=dl[:,t]+.99*.95*d[:,t]*a; o.insert(0,a)
    A_=torch.stack(o,1); return (A_-A_.mean())/(A_.std()+1e-8),F.smooth_l1_loss(v[:,:-1],(A_+v[:,:-1]).detach())
A("gae_backward_loop","scan",gae,[(42,5,13),(42,4),(42,4)],lambda:(L(13,1),))
def pgate_swap(w,x): a,b,c,d,e=torch.split(w(x),[7,16,16,9,16],-1); k=a.softmax(-1); s=sum(k[...,i:i+1]*torch.roll(b,i-3,1) for i in range(7)); return s*sg(c)+e*th(d.mean(-1,keepdim=True)),(d[...,::2].sum(-1)>a[...,1:6].sum(-1)),torch.where(c>e,c,e).amax(-1)
A("soft_shift_uneven","product",pgate_swap,[(3,16,14)],lambda:(L(14,64),))
def quiet(w,x,pos): q,k,v=w(x).view(2,15,4,3,6).permute(3,0,2,1,4); s=(q[...,:,None]*k[...,None].transpose(-1,-2)[...,:1,:].expand(-1,-1,-1,6,-1)).sum(-1); s=torch.cat((s,pos.expand(2,4,15,-1)),-1); a=F.softmax(s/1.7,-1); return (a[...,:6]*v).cumsum(2),a[...,6:].mean(1)
A("feature_attn_expand","reduction",quiet,[(2,15,20),(15,3)],lambda:(L(20,72),))
def mobattn(wq,wk,wv,x): s=wq(x).softmax(1); c=(s*wk(x)).sum(1,keepdim=True); y=F.relu(wv(x))*c; return y+x*c.sigmoid()*.5,s.amax(1)
A("separable_selfattn","product",mobattn,[rf(3,23,18)],lambda:(L(18,1).half(),L(18,18).half(),L(18,18).half()))
def addattn(w,x): q,k,v=w(x).unflatten(-1,(3,4,5)).unbind(2); a=(q.sum(-1,keepdim=True)*5**-.5).softmax(1); gq=(a*q).sum(1,keepdim=True); p=gq*k; b=(p.mean(-1,keepdim=True)*5**.5).softmax(1); gk=(b*p).sum(1,keepdim=True); return (gk*v+q).flatten(2),(a*b).squeeze(-1)
A("fastformer","product",addattn,[(3,19,16)],lambda:(L(16,60),))
def focal(w,c1,c2,h,x): y=w(x.permute(0,2,3,1)).permute(0,3,1,2); q,ctx,g=y.split((9,9,3),1); a=F.gelu(c1(ctx)); s=a*g[:,:1]; a=F.gelu(c2(a)); s=s+a*g[:,1:2]; s=s+F.gelu(a.mean((2,3),keepdim=True))*g[:,2:]; return q*h(s)/3
A("focal_modulation","conv",focal,[(2,9,10,13)],lambda:(L(9,21),nn.Conv2d(9,9,3,padding=1,groups=9),nn.Conv2d(9,9,5,padding=2,groups=9),nn.Conv2d(9,9,1)))
def gnconv(pi,dw,p1,p2,x): y=pi(x); a,b=y.split((4,28),1); d=dw(b)*.33; u,v,t=d.split((4,8,16),1); z=a*u; z=p1(z)*v; return F.silu(p2(z)*t)+x
A("recursive_gconv","conv",gnconv,[(2,16,9,11)],lambda:(nn.Conv2d(16,32,1),nn.Conv2d(28,28,7,padding=3,groups=28),nn.Conv2d(4,8,1),nn.Conv2d(8,16,1)))
def star(f1,f2,g,ls,x): a,b=f1(x),f2(x); y=g(F.relu6(a)*b); return x+ls[:,None,None]*y,(a-b).unflatten(1,(5,-1)).var(2)
A("star_block","conv",star,[(2,10,9,14)],lambda:(nn.Conv2d(10,25,1),nn.Conv2d(10,25,1),nn.Conv2d(25,10,1),P(10)))
def pairffn(w1,w3,w2,x,al): u=w1(x); v=w3(x); s=al.exp(); h=u*sg(s*u)*v; h=h/(h.abs().amax(-1,keepdim=True)+1e-5)*127; h=(h.round()-h).detach()+h; return w2(h/127)+x.mean(1,keepdim=True)
A("swiglu_fakequant","product",lambda a,b,c,al,x:pairffn(a,b,c,x,al),[(2,17,20)],lambda:(L(20,34,bias=False),L(20,34,bias=False),L(34,20,bias=False),P(34)))
def segrec(w,x,m): q,k,v=w(x).unflatten(1,(2,-1)).chunk(3,-1); k=torch.cat((F.pad(k[:,:1],(0,0,0,0,1,0)).detach()[:,:1].expand(-1,2,-1,-1),k),2); v=torch.cat((v.roll(1,1).detach(),v),2); s=torch.einsum("bsqd,bskd->bsqk",q,k)*.3+m; return s.softmax(-1)@v,s.logsumexp((2,3))
A("segment_recur","product",segrec,[(2,18,13),(9,18)],lambda:(L(13,30),))
