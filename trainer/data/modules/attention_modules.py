"""Transformers: attention by hand, norms, losses of language models, recurrent forms."""
from written_base import *
INF=float("-inf")
def tr(*s): return lambda: R(*s).mT
def tp(p,*s): return lambda: R(*s).permute(*p)
def sl(a,b,*s): return lambda: R(*s)[...,a:b]
# --- attention ---
def causal1(q,k,v):
    s=q@k.transpose(-2,-1)/math.sqrt(q.size(-1)); T=q.size(-2)
    m=torch.triu(torch.ones(T,T,dtype=torch.bool,device=q.device),diagonal=1)
    return s.masked_fill(m,INF).softmax(-1)@v
fn("att_causal_triu","product",causal1,(2,3,21,10),(2,3,21,10),(2,3,21,10),train=True)
def causal2(q,k,v):
    t=torch.arange(q.shape[2]); m=t[:,None]>=t[None,:]
    w=torch.where(m,torch.einsum("bhid,bhjd->bhij",q,k)*q.shape[-1]**-0.5,-1e9)
    return torch.einsum("bhij,bhjd->bhid",F.softmax(w,dim=-1),v)
fn("att_causal_arange_where","product",causal2,(3,2,26,9),(3,2,26,9),(3,2,26,9),train=True)
def causal3(q,k,v,m):
    s=torch.matmul(q*0.25,k.transpose(2,3)); s=s+torch.where(m,0.0,torch.finfo(s.dtype).min)[:,None,None,:]
    p=s.float().softmax(-1).to(q.dtype); return p@v,p
fn("att_padmask_finfo_bf16","product",causal3,rh(2,3,17,12),rh(2,3,29,12),rh(2,3,29,12),rb(.8,2,29))
def alibi(sl_,q,k):
    T=q.shape[-2]; r=torch.arange(T); d=(r[None,:]-r[:,None]).clamp(max=0)
    s=q@k.mT/q.shape[-1]**.5+sl_[:,None,None]*d
    return s.masked_fill(r[None,:]>r[:,None],INF).softmax(dim=-1)
fn("att_alibi","product",alibi,(2,5,23,7),(2,5,23,7),layers=lambda:(P(5),),train=True)
def alibi2(s,slope):
    L=s.shape[-1]; i=torch.arange(L,device=s.device)
    return torch.softmax(s-slope.view(-1,1,1)*(i.view(-1,1)-i).abs(),-1)
fn("att_alibi_sym","pointwise",alibi2,(2,6,31,31),ru(6),train=True)
def t5b(emb,q,k,idx):
    b=emb(idx).permute(2,0,1).unsqueeze(0); return (q@k.transpose(-1,-2)+b).softmax(-1)
fn("att_t5_buckets","product",t5b,(2,3,18,8),(2,3,27,8),ri(16,18,27),layers=lambda:(nn.Embedding(16,3),),train=True)
def relshift(q,r,k):
    ac=torch.einsum("ibnd,jbnd->ijbn",q,k); bd=torch.einsum("ibnd,jnd->ijbn",q,r)
    i,j,b,n=bd.shape; bd=torch.cat([torch.zeros(i,1,b,n),bd],1).view(j+1,i,b,n)[1:].reshape(i,j,b,n)
    return ((ac+bd)*(1/math.sqrt(q.shape[-1]))).softmax(1)
fn("att_relshift_xl","product",relshift,(14,2,3,6),(22,3,6),(22,2,3,6),train=True)
def relshift2(x):
    b,h,t,l=x.shape; x=F.pad(x,(1,0)).view(b,h,l+1,t)[:,:,1:].view(b,h,t,l); return torch.tanh(x[...,:t]*0.125+x[...,:1])
fn("att_relshift_music","pointwise",relshift2,(2,3,15,29))
def rot_half(x): a,b=x.chunk(2,-1); return torch.cat((-b,a),-1)
fn("att_rope_halves","pointwise",lambda q,k,c,s:(q*c+rot_half(q)*s,k*c+rot_half(k)*s),(2,5,19,14),(2,3,19,14),(19,14),(19,14),train=True)
def rope_int(x,cos,sin):
    a,b=x[...,::2],x[...,1::2]; return torch.stack((a*cos-b*sin,a*sin+b*cos),-1).flatten(-2)
fn("att_rope_interleaved","pointwise",rope_int,(3,13,4,18),(13,1,9),(13,1,9),train=True)
def rope_part(q,cos,sin,pos):
    r,p=q[...,:10],q[...,10:]; c,s=cos[pos].unsqueeze(1),sin[pos].unsqueeze(1)
    return torch.cat([r*c+rot_half(r)*s,p],dim=-1)
fn("att_rope_partial_pos","pointwise",rope_part,(2,3,17,23),(40,10),(40,10),ri(40,2,17),train=True)
def rope_inv(q,pos):
    d=q.shape[-1]; inv=1.0/(10000**(torch.arange(0,d,2).float()/d)); f=pos[:,:,None].float()*inv
    e=torch.cat((f,f),-1)[:,None]; return q*e.cos()+rot_half(q)*e.sin()
fn("att_rope_invfreq","pointwise",rope_inv,(2,6,11,20),ri(50,2,11))
fn("att_rope_freqs_only","pointwise",lambda pos,inv:(torch.einsum("i,j->ij",pos.float(),inv).cos(),torch.outer(pos.float(),inv).sin()*1.2),ri(90,37),ru(22))
def rope_cplx(x,fr):
    xr=x.float().reshape(*x.shape[:-1],-1,2); re,im=xr.unbind(-1); c,s=fr[...,0],fr[...,1]
    return torch.stack([re*c-im*s,re*s+im*c],dim=-1).flatten(3).type_as(x)
fn("att_rope_complex_stack_bf16","pointwise",rope_cplx,rh(2,14,5,12),(1,14,1,6,2))
def rope2d(x,cy,sy,cx,sx):
    y,z=x.chunk(2,-1); y=y*cy[:,None]+rot_half(y)*sy[:,None]; z=z*cx[None]+rot_half(z)*sx[None]; return torch.cat([y,z],-1)
fn("att_rope_axial2d","pointwise",rope2d,(2,3,9,11,20),(9,10),(9,10),(11,10),(11,10),train=True)
def rope_rot2(x,th):
    x1,x2=x.unflatten(-1,(-1,2)).unbind(-1); c,s=torch.cos(th),torch.sin(th)
    return torch.cat([x1*c-x2*s,x2*c+x1*s],-1)/1.5
fn("att_rope_gptj_theta","pointwise",rope_rot2,(2,7,15,16),(15,8),train=True)
def xpos(q,k,c,s,sc): return (q*c+rot_half(q)*s)*sc,(k*c+rot_half(k)*s)/sc
fn("att_xpos","pointwise",xpos,(2,3,16,10),(2,3,16,10),(16,10),(16,10),lambda: torch.rand(16,10)+.5,train=True)
def rope_yarn(x,pos,inv,mask):
    f=inv/4.0*(1-mask)+inv*mask; a=pos[...,None]*f; m=0.1*math.log(4.0)+1
    return rope_int(x,a.cos()*m,a.sin()*m)
fn("att_rope_yarn","pointwise",rope_yarn,(2,3,18,12),lambda: torch.arange(18.),ru(6),ru(6))
def rms(x,w=None,eps=1e-6):
    y=x*torch.rsqrt(x.pow(2).mean(-1,keepdim=True)+eps); return y if w is None else y*w
fn("att_qknorm_rms","product",lambda a,b,q,k:(rms(q,a)@rms(k,b).mT).mul(11**-.5).softmax(-1),(2,3,19,11),(2,3,24,11),layers=lambda:(P(11),P(11)),train=True)
fn("att_qknorm_l2_scale","product",lambda t,q,k,v:torch.softmax(F.normalize(q,dim=-1)@F.normalize(k,dim=-1).transpose(-2,-1)*t.clamp(max=math.log(100)).exp(),-1)@v,(2,4,15,9),(2,4,21,9),(2,4,21,13),layers=lambda:(P(4,1,1),),train=True)
fn("att_qkln_rope","norm",lambda l,q,c,s:(lambda y:y*c+rot_half(y)*s)(l(q).transpose(1,2)),(2,17,3,14),(17,14),(17,14),layers=lambda:(nn.LayerNorm(14),),train=True)
def softcap(q,k,m):
    s=torch.einsum("bthd,bshd->bhts",q,k)*0.3; s=50.0*torch.tanh(s/50.0); return s.masked_fill(~m,-2.3819763e38).softmax(-1)
fn("att_softcap_gemma","product",softcap,(2,13,3,7),(2,22,3,7),rb(.7,13,22),train=True)
fn("att_sigmoid_bias","product",lambda q,k,v:torch.sigmoid(q@k.mT*.2-math.log(k.shape[-2]))@v,(3,2,23,8),(3,2,31,8),(3,2,31,5),train=True)
def sm1(s): 
    m=s.amax(-1,keepdim=True).clamp(min=0); e=(s-m).exp(); return e/(e.sum(-1,keepdim=True)+torch.exp(-m))
fn("att_softmax_plus1","reduction",sm1,(2,5,17,33),train=True)
fn("att_softmax_plus1_cat","reduction",lambda s:F.softmax(F.pad(s,(0,1)),-1)[...,:-1],(3,4,14,27),train=True)
fn("att_temp_head","reduction",lambda t,s:F.softmax(s/(F.softplus(t)+1e-3)[None,:,None,None],dim=-1),(2,7,13,19),layers=lambda:(P(7),),train=True)
def sinks(sk,q,k,v):
    s=q@k.transpose(-1,-2)*9**-.5; z=sk.view(1,-1,1,1).expand(s.shape[0],-1,s.shape[2],1)
    s=torch.cat([s,z],-1); s=s-s.max(-1,keepdim=True).values; p=F.softmax(s,-1,dtype=torch.float32)[...,:-1]; return p.to(v.dtype)@v
fn("att_sinks_gptoss","product",sinks,(2,6,15,9),(2,6,20,9),(2,6,20,9),layers=lambda:(P(6),),train=True)
fn("att_sinks_logsumexp","reduction",lambda sk,s,m:(s.masked_fill(m,INF)-torch.logaddexp(s.masked_fill(m,INF).logsumexp(-1,keepdim=True),sk[:,None,None])).exp(),(2,5,12,21),rb(.3,12,21),layers=lambda:(P(5),))
fn("att_mqa","product",lambda q,k,v:((torch.einsum("bhnd,bmd->bhnm",q,k)/3).softmax(-1),torch.einsum("bhnm,bme->bhne",(torch.einsum("bhnd,bmd->bhnm",q,k)/3).softmax(-1),v)),(2,5,14,9),(2,18,9),(2,18,6))
def gqa(q,k,v):
    k=k.repeat_interleave(3,dim=1); v=v.repeat_interleave(3,dim=1); a=(q@k.mT*q.shape[-1]**-.5); a=a-0.5*a.abs(); return torch.tanh(F.softmax(a,-1)@v)
fn("att_gqa_repeat","product",gqa,(2,6,17,10),(2,2,23,10),(2,2,23,10),train=True)
def gqa2(q,k,v,m):
    b,h,t,d=q.shape; g=k.shape[1]; q=q.view(b,g,h//g,t,d); s=torch.einsum("bgrtd,bgsd->bgrts",q,k)
    s=s/d**.5+m[:,None,None]; return torch.einsum("bgrts,bgsd->bgrtd",s.softmax(-1),v).reshape(b,h,t,d).transpose(1,2).reshape(b,t,h*d)
fn("att_gqa_grouped","product",gqa2,(2,6,11,8),(2,3,19,8),(2,3,19,8),(2,11,19),train=True)
fn("att_repeat_kv_expand","pointwise",lambda k,c,s:((k*c+rot_half(k)*s)[:,:,None].expand(-1,-1,4,-1,-1).reshape(2,12,13,10))*1.0,(2,3,13,10),(13,10),(13,10),train=True)
def swa(q,k):
    i=torch.arange(q.shape[-2])[:,None]; j=torch.arange(k.shape[-2])[None]; m=(j<=i)&(i-j<7)
    return torch.where(m,q@k.mT*.3,torch.tensor(INF)).softmax(-1)
fn("att_sliding_window","product",swa,(3,2,27,6),(3,2,27,6),train=True)
def swa2(s):
    d=torch.arange(s.shape[-2]).unsqueeze(1)-torch.arange(s.shape[-1]).unsqueeze(0); return s.masked_fill((d<0)|(d>=9)|(d%2==1),-1e4).softmax(-1)
fn("att_sliding_dilated","reduction",swa2,(2,3,25,25),train=True)
def local(q,k,v):
    b,h,n,d=q.shape; w=6; q,k,v=[t.reshape(b,h,n//w,w,-1) for t in (q,k,v)]
    s=torch.einsum("bhnid,bhnjd->bhnij",q,k)*d**-.5; return torch.einsum("bhnij,bhnjd->bhnid",s.softmax(-1),v).reshape(b,h,n,-1)
fn("att_local_blocks","product",local,(2,3,30,7),(2,3,30,7),(2,3,30,5),train=True)
def lookback(k):
    w=k.reshape(2,5,6,9); p=F.pad(w,(0,0,0,0,1,0),value=-1.0)[:,:-1]; return torch.cat([p,w],2)*k.shape[-1]**-.5
fn("att_local_lookback","pointwise",lookback,(2,30,9),train=True)
def swin_part(x,w,b):
    B,H,W,C=x.shape; y=F.layer_norm(x,(C,),w,b,1e-5); y=torch.roll(y,(-2,-2),(1,2))
    return y.view(B,H//4,4,W//5,5,C).permute(0,1,3,2,4,5).reshape(-1,20,C)
fn("att_swin_partition","norm",swin_part,(2,8,15,22),(22,),(22,),train=True)
def swin_rev(win,short):
    B,H,W,C=short.shape; y=win.view(B,H//4,W//5,4,5,C).permute(0,1,3,2,4,5).reshape(B,H,W,C); return short+torch.roll(y,shifts=(2,2),dims=(1,2))*0.9
fn("att_swin_reverse","pointwise",swin_rev,(12,20,11),(2,8,15,11),train=True)
def swin_bias(tab,s,idx,mask):
    b=tab[idx.view(-1)].view(12,12,3).permute(2,0,1); B=s.shape[0]; s=s+b.unsqueeze(0)
    s=s.view(B//5,5,3,12,12)+mask[None,:,None]; return s.view(-1,3,12,12).softmax(-1)
fn("att_swin_relbias_mask","reduction",swin_bias,(10,3,12,12),ri(35,12,12),lambda:(torch.rand(5,12,12)<.2).float()*-100.0,layers=lambda:(P(35,3),),train=True)
def axial(x,wq):
    q=(x@wq); a=(q@x.mT*.2).softmax(-1)@x; xt=x.transpose(1,2); b=(xt@xt.mT*.2).softmax(-1)@xt; return a+b.transpose(1,2)
fn("att_axial","product",axial,(2,9,13,10),(10,10),train=True)
def linatt(q,k,v):
    q,k=F.elu(q)+1,F.elu(k)+1.0; kv=torch.einsum("bhnd,bhne->bhde",k,v); z=1/(torch.einsum("bhnd,bhd->bhn",q,k.sum(2))+1e-6)
    return torch.einsum("bhnd,bhde,bhn->bhne",q,kv,z)
fn("att_linear_elu","product",linatt,(2,3,26,7),(2,3,26,7),(2,3,26,11),train=True)
def performer(pr,x):
    x=x*x.shape[-1]**-.25; d=x@pr.t(); g=(x**2).sum(-1,keepdim=True)*.5; return (torch.exp(d-g-d.amax(-1,keepdim=True))+1e-4)*pr.shape[0]**-.5
fn("att_performer_feat","product",performer,(2,3,22,9),layers=lambda:(P(17,9),),train=True)
fn("att_efficient_lin","product",lambda q,k,v:q.softmax(-1)@(k.softmax(-2).transpose(-1,-2)@v),(2,3,24,7),(2,3,24,7),(2,3,24,13),train=True)
def cosatt(ls,q,k,b):
    q=q/q.norm(dim=-1,keepdim=True).clamp_min(1e-12); k=k/(k.norm(dim=-1,keepdim=True)+1e-12); s=q@k.mT*torch.clamp(ls,max=4.6052).exp(); return (s+16*torch.sigmoid(b)).softmax(-1)
fn("att_cosine_swin2","product",cosatt,(2,3,16,9),(2,3,16,9),(3,16,16),layers=lambda:(P(3,1,1),),train=True)
def talk(a,b,s,m):
    s=torch.einsum("bhij,hg->bgij",s,a).masked_fill(m,INF).softmax(-1); return torch.einsum("bgij,gh->bhij",s,b)
fn("att_talking_heads","product",talk,(2,5,13,17),rb(.2,13,17),layers=lambda:(P(5,5),P(5,5)),train=True)
class Cross(nn.Module):
    def __init__(s,d,c,h): super().__init__(); s.q=nn.Linear(d,d,bias=False); s.kv=nn.Linear(c,2*d); s.o=nn.Linear(d,d); s.n=nn.LayerNorm(d); s.h=h
    def forward(s,x,c,m):
        B,N,D=x.shape; q=s.q(s.n(x)).view(B,N,s.h,-1).transpose(1,2); k,v=s.kv(c).view(B,c.size(1),2,s.h,-1).permute(2,0,3,1,4).unbind(0)
        a=(q*q.size(-1)**-.5)@k.mT; a=a.masked_fill(m[:,None,None]==0,torch.finfo(a.dtype).min).softmax(-1); return x+s.o((a@v).transpose(1,2).flatten(2))
add("att_cross_block","block",lambda:(Cross(30,22,5),(R(2,19,30,requires_grad=True),R(2,14,22,requires_grad=True),torch.randint(0,2,(2,14)))),True)
def diff(l1,l2,l3,l4,q,k,v):
    lam=(l1*l2).sum().exp()-(l3*l4).sum().exp()+0.8; q1,q2=q.chunk(2,-1); k1,k2=k.chunk(2,-1)
    a=(q1@k1.mT*.35).softmax(-1)-lam*(q2@k2.mT*.35).softmax(-1); return rms(a@v)*(1-0.8)
fn("att_differential","product",diff,(2,3,15,16),(2,3,21,16),(2,3,21,10),layers=lambda:tuple(P(8) for _ in range(4)),train=True)
def decode(q,kc,vc,k,v,n):
    kk=torch.cat([kc,k],2); vv=torch.cat([vc,v],dim=2); s=(q*kk).sum(-1)*.3
    s=torch.where(torch.arange(kk.shape[2])[None,None]<n[:,None,None]+1,s,INF); return (s.softmax(-1)[...,None]*vv).sum(2)
fn("att_decode_cache","reduction",decode,(3,4,1,11),(3,4,26,11),(3,4,26,11),(3,4,1,11),(3,4,1,11),ri(26,3))
def decode2(q,kc,vc,k,v,pos):
    hit=(torch.arange(kc.shape[1])==pos[:,None])[...,None,None]; kc=torch.where(hit,k,kc); vc=torch.where(hit,v,vc)
    s=torch.einsum("bhd,blhd->bhl",q,kc)/8; s=s.masked_fill((torch.arange(kc.shape[1])>pos[:,None])[:,None],-1e9); return torch.einsum("bhl,blhd->bhd",s.softmax(-1),vc),kc,vc
fn("att_decode_static","product",decode2,rh(3,4,13),rh(3,21,4,13),rh(3,21,4,13),rh(3,1,4,13),rh(3,1,4,13),ri(21,3))
def prefix(q,k,v,off):
    i=torch.arange(q.shape[-2])+off[:,None]; j=torch.arange(k.shape[-2]); m=j[None,None]<=i[...,None]; return (q@k.mT/7**.5).masked_fill(m.logical_not()[:,None],INF).softmax(-1)@v
fn("att_chunked_prefix","product",prefix,(2,3,9,7),(2,3,29,7),(2,3,29,7),ri(18,2))
def merge(o1,l1,o2,l2):
    m=torch.maximum(l1,l2); a,b=(l1-m).exp(),(l2-m).exp(); z=a+b; return (o1*a[...,None]+o2*b[...,None])/z[...,None],m+z.log()
fn("att_merge_lse","pointwise",merge,(2,5,21,9),(2,5,21),(2,5,21,9),(2,5,21),train=True)
def entr(s):
    p=s.softmax(-1); return -(p*torch.log(p+1e-9)).sum(-1).mean((1,2)),p.amax(-1)
fn("att_entropy","reduction",entr,(3,4,14,27),train=True)
fn("att_entropy_logp","reduction",lambda s:-(F.log_softmax(s,-1).exp()*F.log_softmax(s,-1)).sum(-1)/math.log(s.shape[-1]),(2,6,15,22))
class MHA(nn.Module):
    def __init__(s,d,h): super().__init__(); s.qkv=nn.Linear(d,3*d); s.p=nn.Linear(d,d); s.h=h; s.g=nn.Parameter(torch.ones(d)*1e-4); s.n=nn.LayerNorm(d,eps=1e-6)
    def forward(s,x):
        B,N,C=x.shape; q,k,v=s.qkv(s.n(x)).reshape(B,N,3,s.h,C//s.h).permute(2,0,3,1,4).unbind(0)
        return x+s.g*s.p(((q*(C//s.h)**-.5)@k.transpose(-2,-1)).softmax(dim=-1).matmul(v).transpose(1,2).reshape(B,N,C))
add("att_mha_layerscale","block",lambda:(MHA(35,5),(R(2,18,35,requires_grad=True),)),True)
def gated_attn(g,q,k,v): return torch.sigmoid(g)*((q@k.mT*.2).relu().square()/k.shape[-2]@v)
fn("att_gau_relu2","product",gated_attn,(3,25,14),(3,25,9),(3,25,9),(3,25,14),train=True)
fn("att_scores_transposed","product",lambda q,kt,b:((q@kt)*0.125+b).softmax(-1),tp((0,2,1,3),2,18,3,8),tp((0,2,3,1),2,25,3,8),(3,1,25),train=True)
fn("att_split_qkv_slice","pointwise",lambda qkv:tuple(t.unflatten(-1,(4,7)).transpose(1,2).mul(c).clamp(-2,2) for t,c in zip(qkv.split(28,-1),(7**-.5,1.0,2.5))),sl(3,87,2,19,90))
fn("att_rect_bias_f16","product",lambda q,k,b:torch.softmax((q@k.mT).float()*0.2+b,-1).half(),rf(2,3,14,10),rf(2,3,22,10),(1,3,14,22))
# --- norms ---
def lln(w,x): 
    dt=x.dtype; h=x.to(torch.float32); v=h.pow(2).mean(-1,keepdim=True); return w*(h*torch.rsqrt(v+1e-5)).to(dt)
fn("att_rms_llama_bf16","norm",lln,rh(3,17,44),layers=lambda:(nn.Parameter(torch.ones(44,dtype=torch.bfloat16)),),train=True)
fn("att_rms_gemma_offset","norm",lambda w,x:((x.float()*torch.rsqrt(x.float().square().mean(-1,True)+1e-6))*(1.0+w.float())).type_as(x),rh(2,15,38),layers=lambda:(P(38),),train=True)
fn("att_rms_norm2","norm",lambda w,x:w*x/(x.norm(2,dim=-1,keepdim=True)*x.shape[-1]**-.5+1e-8),(4,14,51),layers=lambda:(P(51),),train=True)
fn("att_rms_normalize","norm",lambda w,x:F.normalize(x,dim=-1)*math.sqrt(46)*(w+1),(3,18,46),layers=lambda:(P(46),),train=True)
fn("att_rms_var_div","norm",lambda w,b,x:x/torch.sqrt(torch.mean(x*x,dim=-1,keepdim=True)+1e-3)*w+b,(5,9,62),layers=lambda:(P(62),P(62)),train=True)
fn("att_prms_partial","norm",lambda w,x:w*(x/(x[...,:9].norm(dim=-1,keepdim=True)/3+1e-8)),(3,16,37),layers=lambda:(P(37),),train=True)
fn("att_frms","norm",lambda w,x:F.rms_norm(x,(29,),w,1e-5)*F.silu(x),(6,13,29),layers=lambda:(P(29),),train=True)
fn("att_scalenorm","norm",lambda g,x:x*(g/x.norm(dim=-1,keepdim=True).clamp(min=1e-5)),(4,17,33),layers=lambda:(P(1),),train=True)
fn("att_deepnorm","norm",lambda l,x,f:l(x*(2*12)**.25+f),(3,19,42),(3,19,42),layers=lambda:(nn.LayerNorm(42),),train=True)
fn("att_addnorm_both","norm",lambda l,x,r:(l(x+r),x+r),(3,22,27),(3,22,27),layers=lambda:(nn.LayerNorm(27),),train=True)
def addrms(w,x,r,b): 
    h=(x+b).float()+r; return (rms(h)*w).to(x.dtype),h.to(x.dtype)
fn("att_addrms_both_bf16","norm",addrms,rh(4,13,50),rh(4,13,50),rh(50),layers=lambda:(P(50),),train=True)
def adaln(c,x,y): 
    s1,c1,g1,s2,c2,g2=c.chunk(6,dim=1); x=x+g1.unsqueeze(1)*y; h=F.layer_norm(x,x.shape[-1:],eps=1e-6)*(1+c2.unsqueeze(1))+s2.unsqueeze(1); return x,h,g2+c1*s1
fn("att_adaln_six","norm",adaln,(3,168),(3,17,28),(3,17,28),train=True)
class DiT(nn.Module):
    def __init__(s,d): super().__init__(); s.a=nn.Linear(d,6*d); s.n=nn.LayerNorm(d,elementwise_affine=False,eps=1e-6); s.f=nn.Linear(d,d*2); s.g=nn.Linear(d*2,d)
    def forward(s,x,c):
        a=s.a(F.silu(c)).reshape(-1,6,1,x.shape[-1]); sh,sc,gt,sm,cm,gm=a.unbind(1); x=x+gt*(s.n(x)*(1+sc)+sh); return x+gm*s.g(F.gelu(s.f(s.n(x)*(cm+1)+sm),approximate="tanh"))
add("att_dit","block",lambda:(DiT(26),(R(3,15,26,requires_grad=True),R(3,26,requires_grad=True))),True)
fn("att_adaln_single","norm",lambda t,l,x,e:l(x)*(1+(t[None,1:2]+e[:,1:2]))+(t[None,:1]+e[:,0,None]),(3,21,34),(3,2,34),layers=lambda:(P(2,34),nn.LayerNorm(34,elementwise_affine=False)),train=True)
fn("att_group_rms","norm",lambda w,x:(x.unflatten(-1,(5,9))*torch.rsqrt(x.unflatten(-1,(5,9)).pow(2).mean(-1,keepdim=True)+1e-5)).flatten(-2)*w,(3,14,45),layers=lambda:(P(45),),train=True)
fn("att_gated_rms_mamba2","norm",lambda w,x,z:rms(x*F.silu(z),w,1e-5),(2,19,54),(2,19,54),layers=lambda:(P(54),),train=True)
fn("att_rms_then_gate","norm",lambda w,o,g:(rms(o)*w).flatten(2)*torch.sigmoid(g),(2,17,4,11),(2,17,44),layers=lambda:(P(11),),train=True)
fn("att_ln_manual","norm",lambda w,b,x:w*(x-x.mean(-1,keepdim=True))/(x.std(-1,keepdim=True)+1e-6)+b,(4,15,39),layers=lambda:(P(39),P(39)),train=True)
def ln_t5(x,w):
    m=x.mean(-1,True); v=((x-m)**2).mean(-1,True); return (x-m)*(v+1e-12)**-0.5*w
fn("att_ln_tf_style","norm",ln_t5,(3,23,31),(31,),train=True)
fn("att_ln_varmean","norm",lambda x:(lambda v,m:((x-m)/(v+1e-5).sqrt()).relu())(*torch.var_mean(x,dim=-1,unbiased=False,keepdim=True)),(5,11,43),train=True)
fn("att_ln_channels_first","norm",lambda w,b,x:((x-x.mean(1,keepdim=True))*torch.rsqrt(x.var(1,keepdim=True,unbiased=False)+1e-6))*w[:,None,None]+b[:,None,None],(3,22,9,14),layers=lambda:(P(22),P(22)),train=True)
fn("att_sandwich","norm",lambda a,b,l,x:x+b(l(a(x))),(3,13,36),layers=lambda:(nn.LayerNorm(36),nn.RMSNorm(36),nn.Linear(36,36)),train=True)
fn("att_dyt","pointwise",lambda a,w,b,x:torch.tanh(a*x)*w+b,(4,17,30),layers=lambda:(nn.Parameter(torch.full((1,),.5)),P(30),P(30)),train=True)
fn("att_ln_transposed_in","norm",lambda l,x:l(x)+x.mean(1,keepdim=True),tr(3,28,25),layers=lambda:(nn.LayerNorm(28,bias=False),),train=True)
fn("att_postln_fp16","norm",lambda w,b,x,r:F.layer_norm((x+r*0.5).float(),(40,),w,b).half(),rf(3,14,40),rf(3,14,40),layers=lambda:(P(40),P(40)))
fn("att_hyperconn","norm",lambda al,be,h,o:torch.einsum("nm,btmd->btnd",al,h)+be[:,None]*o.unsqueeze(2),(2,11,4,18),(2,11,18),layers=lambda:(P(4,4),P(4)),train=True)
fn("att_subln_bitnet","norm",lambda x:(lambda y:(y*(127/y.abs().amax(-1,keepdim=True).clamp(min=1e-5))).round().clamp(-128,127))(rms(x)),(3,17,48))
fn("att_rescale_resid","norm",lambda a,b,x,f:(rms(x)*a.exp()+f*torch.sigmoid(b))/math.sqrt(2),(3,18,26),(3,18,26),layers=lambda:(P(26),P(1)),train=True)
fn("att_ngpt_update","norm",lambda a,h,f:F.normalize(h+a.abs()*(F.normalize(f,dim=-1)-h),dim=-1),(3,16,29),(3,16,29),layers=lambda:(P(29),),train=True)
# --- MLP ---
def gelu_new(x): return 0.5*x*(1.0+torch.tanh(math.sqrt(2.0/math.pi)*(x+0.044715*torch.pow(x,3.0))))
fn("att_gelu_new_mlp","product",lambda a,b,x:b(gelu_new(a(x))),(3,14,20),layers=lambda:(nn.Linear(20,74),nn.Linear(74,20)),train=True)
fn("att_gelu_fast","pointwise",lambda x,b:0.5*(x+b)*(1+torch.tanh((x+b)*0.7978845608*(1+0.044715*(x+b)*(x+b)))),(3,18,45),(45,),train=True)
fn("att_quickgelu","product",lambda l,x:(lambda y:y*torch.sigmoid(1.702*y))(l(x)),(4,15,22),layers=lambda:(nn.Linear(22,67),),train=True)
fn("att_gelu_erf","product",lambda w,x:(lambda y:y*0.5*(1+torch.erf(y/1.41421)))(x@w.t()),(3,17,24),layers=lambda:(P(50,24),),train=True)
class SwiGLU(nn.Module):
    def __init__(s,d,f): super().__init__(); s.w1=nn.Linear(d,f,bias=False); s.w3=nn.Linear(d,f,bias=False); s.w2=nn.Linear(f,d,bias=False)
    def forward(s,x): return x+s.w2(F.silu(s.w1(x))*s.w3(x))
add("att_swiglu","product",lambda:(SwiGLU(24,58),(R(3,13,24,requires_grad=True),)),True)
add("att_swiglu_bf16","product",lambda:(SwiGLU(30,46).bfloat16(),(R(2,19,30).bfloat16().requires_grad_(),)),True)
def swiglu_oai(l,x):
    y=l(x); g,u=y[...,::2],y[...,1::2]; g=g.clamp(max=7.0); u=u.clamp(-7.0,7.0); return g*torch.sigmoid(1.702*g)*(u+1)
fn("att_swiglu_oai_interleaved","product",swiglu_oai,(3,15,22),layers=lambda:(nn.Linear(22,62),),train=True)
fn("att_relu2","product",lambda a,b,x:b(F.relu(a(x)).square())*0.5+x,(3,16,26),layers=lambda:(nn.Linear(26,52,False),nn.Linear(52,26,False)),train=True)
fn("att_geglu_chunk","product",lambda l,x:(lambda a,g:a*F.gelu(g,approximate="tanh"))(*l(x).chunk(2,dim=-1)),(4,11,18),layers=lambda:(nn.Linear(18,90),),train=True)
fn("att_reglu_bilinear","product",lambda v,w,x:(torch.einsum("btd,df->btf",x,v).relu()*torch.einsum("btd,df->btf",x,w),F.glu(x@v,-1)),(3,14,21),layers=lambda:(P(21,38),P(21,38)),train=True)
fn("att_xielu","pointwise",lambda ap,an,x:torch.where(x>0,F.softplus(ap)*x*x+.5*x,(torch.expm1(torch.clamp(x,max=-1e-6))-x)*(0.5+F.softplus(an))+.5*x),(3,17,41),layers=lambda:(P(1),P(1)),train=True)
def moe1(r,w1,w2,x):
    p=F.softmax(r(x).float(),-1); top=p.argmax(-1); oh=F.one_hot(top,p.shape[-1]).to(x.dtype); g=(p*oh).sum(-1,keepdim=True)
    h=F.gelu(torch.einsum("btd,edf->btef",x,w1)); return g*torch.einsum("btef,efd,bte->btd",h,w2,oh),p.mean((0,1))*oh.mean((0,1))
fn("att_moe_dense_top1","product",moe1,(2,13,14),layers=lambda:(nn.Linear(14,5,bias=False),P(5,14,22),P(5,22,14)),train=True)
def moe_soft(p,y): return torch.einsum("bte,bted->btd",p/p.sum(-1,keepdim=True).clamp_min(1e-9),y)
fn("att_moe_mix_norm","product",moe_soft,ru(3,14,6),(3,14,6,17),train=True)
def moe_gather(lg,idx,y):
    s=lg.sigmoid().gather(-1,idx); w=s/(s.sum(-1,keepdim=True)+1e-20)*2.5; return (y*w.unsqueeze(-1)).sum(-2)
fn("att_moe_deepseek_gate","reduction",moe_gather,(3,12,11),ri(11,3,12,4),(3,12,4,18),train=True)
def moe_aux(lg,idx):
    p=lg.softmax(-1); f=(idx.unsqueeze(-1)==torch.arange(9)).float().sum(2).mean((0,1)); return 9*(f*p.mean((0,1))).sum()*0.01+1e-3*lg.logsumexp(-1).square().mean()
fn("att_moe_aux_zloss","loss",moe_aux,(4,31,9),ri(9,4,31,2),train=True)
def moe_cap(idx):
    oh=F.one_hot(idx,7); pos=(oh.cumsum(1)*oh).sum(-1)-1; return pos,(pos<6)&(pos>=0),oh.float().mean(1)
fn("att_moe_capacity","scan",moe_cap,ri(7,3,40))
fn("att_moe_mask_group","reduction",lambda s,m:(s.unflatten(-1,(4,6)).amax(-1),torch.where(m[...,None],s.unflatten(-1,(4,6)).sigmoid(),0.0).flatten(-2)),(3,19,24),rb(.5,3,19,4))
fn("att_mixer_tokens","product",lambda l,a,b,x:x+b(F.gelu(a(l(x).transpose(1,2)))).mT,(3,18,25),layers=lambda:(nn.LayerNorm(25),nn.Linear(18,34),nn.Linear(34,18)),train=True)
fn("att_gmlp_sgu","product",lambda l,w,b,x:(lambda u,v:u*(torch.einsum("nm,bmd->bnd",w,l(v))+b[:,None]))(*x.chunk(2,-1)),(3,19,44),layers=lambda:(nn.LayerNorm(22),P(19,19),nn.Parameter(torch.ones(19))),train=True)
fn("att_lora","product",lambda l,a,b,x:l(x)+(x@a.t()@b.t())*(16/5),(3,17,28),layers=lambda:(nn.Linear(28,39),P(5,28),P(39,5)),train=True)
fn("att_dora","product",lambda w,a,b,m,x:F.linear(x,(w+b@a)*(m/(w+b@a).norm(p=2,dim=1)).unsqueeze(1)),(3,15,26),layers=lambda:(P(33,26),P(4,26),P(33,4),P(33)),train=True)
fn("att_ia3_adapter","product",lambda a,d,u,x:x*a+u(F.silu(d(x*a)))*0.1,(3,14,32),layers=lambda:(P(32),nn.Linear(32,7),nn.Linear(7,32)),train=True)
# --- embeddings, pooling, heads ---
class Emb(nn.Module):
    def __init__(s,v,t,d): super().__init__(); s.w=nn.Embedding(v,d,padding_idx=0); s.p=nn.Embedding(t,d); s.t=nn.Embedding(2,d); s.n=nn.LayerNorm(d,eps=1e-12)
    def forward(s,i,g): return s.n(s.w(i)+s.t(g)+s.p(torch.arange(i.size(1))[None]))
add("att_bert_embed","norm",lambda:(Emb(90,40,33),(torch.randint(0,90,(3,21)),torch.randint(0,2,(3,21)))),True)
fn("att_gemma_embed_scale","pointwise",lambda e,i,m:(e(i)*38**.5).masked_fill(m.unsqueeze(-1),0.0),ri(70,3,18),rb(.2,3,18),layers=lambda:(nn.Embedding(70,38),),train=True)
def roberta_pos(e,p,i):
    m=i.ne(1).int(); pos=(m.cumsum(1)*m).long()+1; return e(i)+p(pos)
fn("att_roberta_pos","scan",roberta_pos,ri(6,3,22),layers=lambda:(nn.Embedding(6,26),nn.Embedding(40,26)))
def sinus(x):
    T,D=x.shape[-2:]; p=torch.arange(T).unsqueeze(1); f=torch.exp(torch.arange(0,D,2)*(-math.log(10000.0)/D)); return x*D**.5+torch.cat([(p*f).sin(),(p*f).cos()],1)
fn("att_sinusoidal_add","pointwise",sinus,(3,19,34))
def tstep(t,dim=30):
    h=dim//2; f=torch.exp(-math.log(10000)*torch.arange(h,dtype=torch.float32)/h); a=t[:,None].float()*f[None]; return torch.cat([torch.cos(a),torch.sin(a)],-1)
fn("att_timestep_mlp","product",lambda a,b,t:b(F.silu(a(tstep(t*1000)))),ru(25),layers=lambda:(nn.Linear(30,44),nn.Linear(44,22)))
fn("att_vit_tokens","norm",lambda c,p,l,x:l(torch.cat([c.expand(x.size(0),-1,-1),x.flatten(2).mT],1)+p),(3,22,4,7),layers=lambda:(P(1,1,22),P(1,29,22),nn.LayerNorm(22)),train=True)
class Patch(nn.Module):
    def __init__(s,c,d): super().__init__(); s.c=nn.Conv2d(c,d,(4,4),stride=4); s.cls=nn.Parameter(R(1,1,d)*.02); s.reg=nn.Parameter(R(1,3,d)*.02); s.pos=nn.Parameter(R(1,1+5*6,d)*.02)
    def forward(s,x): y=s.c(x).flatten(2).transpose(1,2); b=y.shape[0]; z=torch.cat((s.cls.expand(b,-1,-1),y),1)+s.pos; return F.silu(torch.cat((z[:,:1],s.reg.expand(b,-1,-1),z[:,1:]),1))
add("att_patch_registers","conv",lambda:(Patch(3,26),(R(2,3,20,24,requires_grad=True),)),True)
def patchify(x): 
    y=x.reshape(2,3,5,4,6,4).permute(0,2,4,3,5,1).reshape(2,30,48); return (y-y.mean(-1,keepdim=True))/(y.var(-1,keepdim=True)+1e-6)**.5
fn("att_mae_patchify_norm","norm",patchify,(2,3,20,24))
fn("att_mae_loss","loss",lambda p,t,m:(((p-(t-t.mean(-1,True))/(t.var(-1,keepdim=True)+1e-6).sqrt())**2).mean(-1)*m).sum()/m.sum(),(3,21,34),(3,21,34),lambda:(torch.rand(3,21)<.6).float(),train=True)
fn("att_mask_token","pointwise",lambda t,p,x,m:torch.where(m[...,None],t,x*1.3)+p[None,:x.shape[1]],(3,17,28),rb(.4,3,17),layers=lambda:(P(28),P(24,28)),train=True)
fn("att_meanpool_mask","pool",lambda x,m:(x*m.unsqueeze(-1).float()).sum(1)/m.sum(1,keepdim=True).clamp(min=1e-9),(4,23,31),ri(2,4,23),train=True)
fn("att_meanpool_norm","pool",lambda x,m:F.normalize(x.masked_fill(~m[...,None],0.).sum(dim=1)/m.sum(dim=1)[...,None],p=2,dim=1),(4,18,37),rb(.8,4,18),train=True)
fn("att_maxpool_mask","pool",lambda x,m:torch.max(torch.where(m.unsqueeze(2)==1,x,torch.tensor(-1e9)),1).values.tanh(),(3,19,42),ri(2,3,19),train=True)
fn("att_lasttok_gather","pool",lambda l,x,m:l(x.gather(1,(m.sum(1)-1).clamp(min=0)[:,None,None].expand(-1,1,x.shape[-1])).squeeze(1)).tanh(),(4,16,27),ri(2,4,16),layers=lambda:(nn.Linear(27,14),),train=True)
fn("att_lasttok_index","pool",lambda x,ids:torch.sigmoid(x[torch.arange(x.shape[0]),(ids.eq(0).int().argmax(-1)-1)%ids.shape[-1]])*2,(5,17,24),ri(4,5,17))
fn("att_attnpool","pool",lambda w,x,m:torch.einsum("bt,btd->bd",(x.tanh()@w).masked_fill(m,INF).softmax(1),x),(3,26,19),rb(.3,3,26),layers=lambda:(P(19),),train=True)
fn("att_cls_pooler","pool",lambda l,x:torch.cat([torch.tanh(l(x[:,0])),x[:,1:].mean(1),x[:,1:].amax(1)],-1),(4,15,23),layers=lambda:(nn.Linear(23,23),),train=True)
fn("att_poswt_pool","pool",lambda x,m:(lambda w:(x*w).sum(1)/w.sum(1))((m*torch.arange(1,m.shape[1]+1)).unsqueeze(-1).float()),(3,21,29),ri(2,3,21))
fn("att_tied_logits","product",lambda n,w,x:30*torch.tanh((n(x)@w.T)*22**-.5/30),(2,17,22),layers=lambda:(nn.LayerNorm(22),P(85,22)),train=True)
fn("att_tied_embed_head","product",lambda e,b,i:F.log_softmax(F.linear(F.gelu(e(i)),e.weight,b),-1),ri(61,2,19),layers=lambda:(nn.Embedding(61,20),P(61)),train=True)
fn("att_logit_scale_clip","loss",lambda t,a,b:(lambda s:(s,-(torch.diagonal(s.log_softmax(1)).mean()+torch.diagonal(s.log_softmax(0)).mean())/2))(F.normalize(a,dim=-1)@F.normalize(b,dim=-1).t()*t.exp().clamp(max=100)),(23,30),(23,30),layers=lambda:(P(1),),train=True)
fn("att_siglip","loss",lambda t,b,x,y:-F.logsigmoid((2*torch.eye(x.shape[0])-1)*(x@y.mT*t.exp()+b)).sum(-1).mean(),(21,26),(21,26),layers=lambda:(P(1),P(1)),train=True)
fn("att_muP_head_f16","product",lambda l,x:(l(x).float()/4.0).clamp(-15,15).sub(0.5),rf(2,13,28),layers=lambda:(nn.Linear(28,57,bias=False).half(),))
# --- losses ---
fn("att_ce_shift","loss",lambda lg,y:F.cross_entropy(lg[:,:-1].reshape(-1,lg.size(-1)),y[:,1:].reshape(-1),ignore_index=-100),(3,16,47),lambda:torch.where(torch.rand(3,16)<.2,-100,torch.randint(0,47,(3,16))),train=True)
fn("att_ce_smooth","loss",lambda lg,y:F.cross_entropy(lg,y,label_smoothing=0.1,reduction="none"),(37,52),ri(52,37),train=True)
def smooth(lg,y,m,eps=.1):
    lp=F.log_softmax(lg,-1); nll=-lp.gather(-1,y.unsqueeze(-1)).squeeze(-1); sm=-lp.mean(-1); return ((1-eps)*nll+eps*sm).masked_fill(m,0.).sum()/(~m).sum()
fn("att_smooth_manual","loss",smooth,(3,17,39),ri(39,3,17),rb(.2,3,17),train=True)
def zloss(lg,y):
    z=torch.logsumexp(lg.float(),-1); nll=z-lg.float().gather(-1,y[...,None])[...,0]; return (nll+1e-4*z**2).mean(),z.detach().max()
fn("att_ce_zloss_bf16","loss",zloss,rh(3,14,53),ri(53,3,14),train=True)
def zl_ign(lg,y):
    ok=y>=0; z=lg.logsumexp(-1); t=lg.gather(-1,y.clamp(min=0).unsqueeze(-1)).squeeze(-1); l=torch.where(ok,z-t,0); return l.sum()/ok.sum().clamp_min(1),(lg.argmax(-1)==y).logical_and(ok).sum()
fn("att_ce_ignore_manual_acc","loss",zl_ign,(2,25,44),lambda:torch.randint(-1,44,(2,25)),train=True)
fn("att_kd_kl","loss",lambda s,t:F.kl_div(F.log_softmax(s/2.5,-1),F.softmax(t/2.5,-1),reduction="batchmean")*2.5**2,(27,46),(27,46),train=True)
def jsd(s,t,m,b=.3):
    ls,lt=s.log_softmax(-1),t.log_softmax(-1); mx=torch.logaddexp(ls+math.log(1-b),lt+math.log(b)); l=b*(lt.exp()*(lt-mx)).sum(-1)+(1-b)*(ls.exp()*(ls-mx)).sum(-1); return (l*m).sum()/m.sum()
fn("att_kd_jsd","loss",jsd,(2,15,34),(2,15,34),ru(2,15),train=True)
def focal(lg,y,a=.25):
    lp=F.log_softmax(lg,1).gather(1,y[:,None]).squeeze(1); return (-a*(1-lp.exp())**2.0*lp).mean()
fn("att_focal_ce","loss",focal,(33,21),ri(21,33),train=True)
fn("att_focal_sigmoid","loss",lambda x,t:(lambda p,ce:(ce*(1-(p*t+(1-p)*(1-t)))**1.5*(.25*t+.75*(1-t))).mean(1).sum()/17)(x.sigmoid(),F.binary_cross_entropy_with_logits(x,t,reduction="none")),(17,46),ru(17,46),train=True)
fn("att_margin_rank","loss",lambda p,n:F.relu(0.2-p.unsqueeze(1)+n).mean(-1),(19,),(19,43),train=True)
fn("att_rm_pairwise","loss",lambda v,c,r:(-F.logsigmoid((c@v)-(r@v)-0.1).mean(),((c@v)>(r@v)).float().mean()),(25,38),(25,38),layers=lambda:(P(38),),train=True)
fn("att_rm_center","loss",lambda c,r,m:(-F.logsigmoid(c-r)*m).sum()/m.sum()+0.01*((c+r)**2).mean(),(9,58),(9,58),ru(9,58),train=True)
def seqlp(lg,y,m):
    lp=lg[:,:-1].log_softmax(-1).gather(2,y[:,1:,None]).squeeze(2); mm=m[:,1:]; return (lp*mm).sum(-1),(lp*mm).sum(-1)/mm.sum(-1).clamp(min=1)
fn("att_seq_logprobs","loss",seqlp,(4,15,36),ri(36,4,15),rb(.7,4,15),train=True)
fn("att_dpo","loss",lambda pc,pr,rc,rr:(lambda h:(-F.logsigmoid(.1*h)*(1-.05)-F.logsigmoid(-.1*h)*.05,.1*(pc-rc).detach()))((pc-pr)-(rc-rr)),(640,),(640,),(640,),(640,),train=True)
def dpo_tok(p,r,y,m):
    f=lambda l:(l.log_softmax(-1).gather(-1,y[...,None])[...,0]*m).sum(-1); h=f(p)-f(r.detach()); a,b=h.chunk(2); return -F.logsigmoid(0.3*(a-b)).mean()
fn("att_dpo_tokens","loss",dpo_tok,(6,13,27),(6,13,27),ri(27,6,13),ru(6,13),train=True)
fn("att_simpo_ipo_kto","loss",lambda c,r,lc,lr:(-F.logsigmoid(2.0*(c/lc-r/lr)-0.5).mean(),((c-r-1/(2*.1))**2).mean(),1-torch.sigmoid(.1*(c-r.mean()))),(530,),(530,),lambda:torch.randint(5,60,(530,)),lambda:torch.randint(5,60,(530,)),train=True)
def orpo(c,r): 
    o=(c-r)-(torch.log1p(-torch.exp(c.clamp(max=-1e-4)))-torch.log1p(-torch.exp(r.clamp(max=-1e-4)))); return (-c-0.1*F.logsigmoid(o)).mean()
fn("att_orpo","loss",orpo,lambda:-torch.rand(7,90)-.1,lambda:-torch.rand(7,90)-.1,train=True)
def ppo(lp,old,adv,m,v,vo,ret):
    r=(lp-old).exp(); pg=torch.max(-adv*r,-adv*torch.clamp(r,.8,1.2)); vc=vo+(v-vo).clamp(-.2,.2); vl=.5*torch.maximum((v-ret)**2,(vc-ret)**2)
    return ((pg+.1*vl)*m).sum()/m.sum(),((r-1).abs()>.2).float().mul(m).sum()/m.sum()
fn("att_ppo","loss",ppo,*[(6,45)]*3,lambda:(torch.rand(6,45)<.8).float(),*[(6,45)]*3,train=True)
def grpo(r,lp,old,ref,m):
    a=((r-r.mean(1,keepdim=True))/(r.std(1,keepdim=True)+1e-4)).view(-1,1); ra=torch.exp(lp-old); k=torch.exp(ref-lp)-(ref-lp)-1
    l=-torch.min(ra*a,ra.clamp(1-.2,1+.28)*a)+.04*k; return ((l*m).sum(1)/m.sum(1).clamp(min=1)).mean()
fn("att_grpo","loss",grpo,(4,6),(24,19),(24,19),(24,19),rb(.8,24,19),train=True)
fn("att_grpo_adv","norm",lambda r,m:((r-r.mean(-1,True))/(r.std(-1,keepdim=True,unbiased=False)+1e-6))[...,None]*m,(19,27),ru(19,27,11))
fn("att_rloo","norm",lambda r:((r-(r.sum(0,keepdim=True)-r)/(r.shape[0]-1)).clamp(-5,5),r.sub(r.mean()).div(r.std()+1e-8)),(8,71))
fn("att_gspo","loss",lambda lp,old,m,a:(lambda s:-torch.min(s*a,s.clamp(.997,1.004)*a).mean())((((lp-old)*m).sum(-1)/m.sum(-1)).exp()),(13,44),(13,44),ru(13,44),(13,),train=True)
def entb(lg,m):
    p=F.softmax(lg,-1); e=torch.logsumexp(lg,-1)-(p*lg).sum(-1); return -0.01*(e*m).sum()/(m.sum()+1e-8),e
fn("att_entropy_bonus","loss",entb,(3,18,33),ru(3,18),train=True)
def unlik(lg,c):
    p=lg.softmax(-1); return -(torch.log((1-p).clamp(min=1e-5))*c).sum(-1).mean()
fn("att_unlikelihood","loss",unlik,(3,14,41),lambda:(torch.rand(3,14,41)<.1).float(),train=True)
fn("att_reward_shape","scan",lambda kl,m,s:(-.05*kl*m+s[:,None]*(m.cumsum(1)==m.sum(1,keepdim=True)).float(),(m*kl).flip(1).cumsum(1).flip(1)),(7,39),lambda:(torch.rand(7,39)<.9).float(),(7,))
fn("att_masked_whiten","norm",lambda x,m:(lambda mu:(x-mu)*torch.rsqrt((((x-mu)**2)*m).sum()/m.sum()+1e-8)+mu)((x*m).sum()/m.sum()),(8,67),ru(8,67))
fn("att_mtp_loss","loss",lambda h,lg,y:sum(F.cross_entropy((lg[:,:13]@w).flatten(0,1),y[:,i:i+13].flatten())*.3**i for i,w in enumerate(h.unbind(0))),(2,16,18),ri(18,2,16),layers=lambda:(P(3,18,18),),train=True)
fn("att_cispo_detach","loss",lambda lp,old,a,m:-(torch.clamp((lp-old).exp(),max=1.5).detach()*a[:,None]*lp*m).sum()/m.sum(),(11,52),(11,52),(11,),ru(11,52),train=True)
fn("att_nce_logits","loss",lambda p,n:-torch.log(p.exp()/(p.exp()+n.exp().sum(-1)+1e-8)).mean(),(5,29),(5,29,14),train=True)
fn("att_contrast_simcse","loss",lambda x,y:F.cross_entropy(F.cosine_similarity(x.unsqueeze(1),y.unsqueeze(0),dim=-1)/0.05,torch.arange(x.shape[0])),(19,28),(22,28),train=True)
# --- sampling helpers ---
def minp(lg,t=.7,mp=.1):
    p=(lg/t).softmax(-1); return lg.masked_fill(p<mp*p.amax(-1,keepdim=True),INF).softmax(-1)
fn("att_minp","reduction",minp,(7,93))
fn("att_rep_penalty","pointwise",lambda s,m,b:torch.where(m,torch.where(s<0,s*1.3,s/1.3),s)-0.5*m.float()+b,(6,110),rb(.2,6,110),(110,))
fn("att_freq_presence","reduction",lambda lg,c,b:F.log_softmax((lg-c*.4-(c>0).float()*.6+b)/0.8,-1),(5,87),ri(4,5,87),(87,))
fn("att_eta_cutoff","reduction",lambda lg:(lambda p:lg.masked_fill(p<torch.minimum(torch.tensor(3e-2),.17*torch.exp((p*torch.log(p+1e-10)).sum(-1,keepdim=True))),INF))(lg.softmax(-1)),(8,75))
fn("att_typical_shift","reduction",lambda lg:(lambda n:((-n)-(-(n*n.exp()).nansum(-1,keepdim=True))).abs())(torch.log_softmax(lg,-1)),(6,82))
fn("att_cfg_logits","pointwise",lambda c,u,m:(lambda x:x.masked_fill(m,-1e9)-x.logsumexp(-1,keepdim=True))(u.log_softmax(-1)+1.5*(c.log_softmax(-1)-u.log_softmax(-1))),(4,97),(4,97),rb(.1,97))
fn("att_topp_given_sorted","scan",lambda s:(lambda c:s.masked_fill((c-s.softmax(-1))>0.9,INF))(s.softmax(-1).cumsum(-1)),(7,88))
fn("att_gumbel_given","reduction",lambda lg,u:(((lg-torch.log(-torch.log(u.clamp(1e-9,1-1e-7))))/.5).softmax(-1),(lg-torch.log(-torch.log(u.clamp(1e-9,1-1e-7)))).argmax(-1)),(9,66),ru(9,66))
fn("att_spec_accept","reduction",lambda p,q,u,i:(lambda a,b:((u<(a/b.clamp(min=1e-9)).clamp(max=1.0)).int().cumprod(1).sum(1),F.relu(p-q)/(p-q).relu().sum(-1,keepdim=True).clamp_min(1e-6)))(p.gather(-1,i[...,None]).squeeze(-1),q.gather(-1,i[...,None]).squeeze(-1)),ru(3,6,43),ru(3,6,43),ru(3,6),ri(43,3,6))
fn("att_beam_scores","reduction",lambda lg,b,d:(b.unsqueeze(-1)+F.log_softmax(lg,-1)).masked_fill(d[...,None],-1e4).flatten(1)/(5+1)**.6,(4,5,38),(4,5),rb(.2,4,5))
fn("att_contrastive_dec","reduction",lambda e,a:torch.where(e.log_softmax(-1)<math.log(.1)+e.log_softmax(-1).amax(-1,keepdim=True),torch.full((),INF),1.5*e.log_softmax(-1)-.5*a.log_softmax(-1)),(8,71),(8,71))
# --- recurrent / state space ---
def shift1(x): return F.pad(x,(0,0,1,-1))
def rwkv_cm(mk,mr,k,v,r,x):
    xx=F.pad(x,(0,0,1,-1)); a=x*mk+xx*(1-mk); b=x*mr+xx*(1-mr); return torch.sigmoid(r(b))*v(torch.square(torch.relu(k(a))))
fn("att_rwkv_channelmix","product",rwkv_cm,(3,17,22),layers=lambda:(P(1,1,22),P(1,1,22),nn.Linear(22,58,False),nn.Linear(58,22,False),nn.Linear(22,22,False)),train=True)
fn("att_rwkv_shift_cat","pointwise",lambda mk,mv,mr,x,s:(lambda xx:(x*mk+xx*(1-mk),torch.lerp(xx,x,mv),(xx-x)*mr.sigmoid()+x))(torch.cat([s.unsqueeze(1),x[:,:-1]],1)),(3,19,26),(3,26),layers=lambda:(P(26),P(26),P(26)),train=True)
def rwkv6_mix(a,b,w,x):
    d=shift1(x)-x; m=torch.tanh((x+d*w[0])@a).view(2,18,5,4).permute(2,0,1,3); m=torch.einsum("nbtr,nrd->nbtd",m,b); return (x+d*(w[1:,None,None]+m)).unbind(0)
fn("att_rwkv6_ddlerp","product",rwkv6_mix,(2,18,21),layers=lambda:(P(21,20),P(5,4,21),P(6,21)),train=True)
def wkv_par(w,u,k,v):
    T=k.shape[1]; i=torch.arange(T); d=(i[:,None]-i-1).clamp(min=0); e=-torch.exp(w)*d[...,None]; e=torch.where((i[:,None]>i)[...,None],e,torch.where((i[:,None]==i)[...,None],u,INF))
    s=e[None]+k[:,None]; p=(s-s.amax(2,keepdim=True)).exp(); return (p*v[:,None]).sum(2)/p.sum(2)
fn("att_wkv_parallel","reduction",wkv_par,(2,12,17),(2,12,17),layers=lambda:(P(17),P(17)),train=True)
def wkv_step(w,u,k,v,a,b,p):
    q=torch.maximum(p,u+k); e1,e2=torch.exp(p-q),torch.exp(u+k-q); o=(e1*a+e2*v)/(e1*b+e2); w=-torch.exp(w); q2=torch.maximum(p+w,k); e1,e2=(p+w-q2).exp(),(k-q2).exp(); return o,e1*a+e2*v,e1*b+e2,q2
fn("att_wkv_step","pointwise",wkv_step,*[(17,42)]*5,layers=lambda:(P(42),P(42)),train=True)
def mamba_dt(bias,al,dt,x,B):
    dt=F.softplus(dt+bias); A=-torch.exp(al.float()); return torch.exp(dt.unsqueeze(-1)*A),(dt*x).unsqueeze(-1)*B.unsqueeze(2)
fn("att_mamba_discretise","pointwise",mamba_dt,(2,15,18),(2,15,18),(2,15,7),layers=lambda:(P(18),P(18,7)),train=True)
def mamba_step(D,h,dA,dBx,C,x,z): h=h*dA+dBx; y=(h*C[:,None]).sum(-1)+D*x; return y*F.silu(z),h
fn("att_mamba_step","reduction",mamba_step,(3,22,9),(3,22,9),(3,22,9),(3,9),(3,22),(3,22),layers=lambda:(P(22),),train=True)
def segsum(a):
    T=a.shape[-1]; c=a.cumsum(-1); s=c[...,:,None]-c[...,None,:]; return s.masked_fill(~torch.ones(T,T,dtype=torch.bool).tril(),INF).exp()
fn("att_ssd_segsum","scan",segsum,(3,4,22),train=True)
def segsum2(x):
    T=x.size(-1); x=x[...,None].repeat(1,1,1,T).masked_fill(~torch.tril(torch.ones(T,T,dtype=torch.bool),-1),0); return x.cumsum(-2).masked_fill(~torch.tril(torch.ones(T,T,dtype=torch.bool)),INF)
fn("att_ssd_segsum_stable","scan",segsum2,(2,5,19))
def ssd(a,B,C,x,dt):
    A=-F.softplus(dt+a); L=segsum(A.transpose(1,2)); return torch.einsum("bln,bsn,bhls,bshp->blhp",C,B,L,x*dt.sigmoid()[...,None])
fn("att_ssd_quadratic","product",ssd,(2,17,6),(2,17,6),(2,17,3,9),(2,17,3),layers=lambda:(P(3),),train=True)
def conv_causal(w,b,x): return F.silu(F.conv1d(F.pad(x.mT,(3,0)),w,b,groups=x.shape[-1]).mT)
fn("att_mamba_dwconv","conv",conv_causal,(2,23,26),layers=lambda:(P(26,1,4),P(26)),train=True)
fn("att_shortconv_sum","pointwise",lambda w,x:F.silu(sum(w[:,i]*F.pad(x,(0,0,i,-i) if i else (0,0,0,0)) for i in range(4))),(3,19,22),layers=lambda:(P(22,4),),train=True)
fn("att_conv_state_step","reduction",lambda w,b,s,x:(F.silu((torch.cat([s[...,1:],x.unsqueeze(-1)],-1)*w).sum(-1)+b),torch.cat([s[...,1:],x.unsqueeze(-1)],-1)),(5,54,4),(5,54),layers=lambda:(P(54,4),P(54)),train=True)
def reten(q,k,v):
    g=1-2.0**(-5-torch.arange(q.shape[1])); i=torch.arange(q.shape[2]); d=i[:,None]-i[None]; D=torch.where(d>=0,g[:,None,None]**d.clamp(min=0),0.0); D=D/D.sum(-1,keepdim=True).sqrt()
    s=q@k.mT*D; return s/s.detach().abs().sum(-1,keepdim=True).clamp(min=1,max=5e4)@v
fn("att_retention","product",reten,(2,3,20,8),(2,3,20,8),(2,3,20,13),train=True)
def reten_step(g,S,k,v,q): S=S*g.view(1,-1,1,1)+k[...,None]*v[...,None,:]; return F.group_norm((q[...,None]*S).sum(-2).flatten(1),5),S
fn("att_retention_step","norm",reten_step,(3,5,8,11),(3,5,8),(3,5,11),(3,5,8),layers=lambda:(P(5),),train=True)
def gla(q,k,v,g):
    c=F.logsigmoid(g).div(16).cumsum(2); a=(q*c.exp())@(k*(-c).exp()).mT; return a.tril()@v
fn("att_gla_parallel","product",gla,(2,3,18,7),(2,3,18,7),(2,3,18,11),(2,3,18,7),train=True)
def gla_chunk(S,k,v,g):
    b=g.cumsum(-2); t=b[...,-1:,:]; return S*t.mT.exp()+(k*(t-b).exp()).mT@v,b.exp()
fn("att_gla_chunk_state","product",gla_chunk,(2,3,9,12),(2,3,14,9),(2,3,14,12),lambda:-torch.rand(2,3,14,9),train=True)
def hgrn(lb,i,f,g): l=lb.softmax(0).cumsum(0)[1]; f=l+(1-l)*f.sigmoid(); return F.silu(i)*(1-f),f.log(),g.sigmoid()*f
fn("att_hgrn_gates","scan",hgrn,(3,18,23),(3,18,23),(3,18,23),layers=lambda:(P(4,23),),train=True)
fn("att_hyena_gate","pointwise",lambda u,d:(lambda v,a,b:(v*a+d*v)*b)(*u.chunk(3,1)),(3,54,21),(18,1),train=True)
def hyena_filter(f,t,dec): return f*(torch.exp(-t[:,None]*dec.abs())+0.05)/(f.abs().sum(0,keepdim=True)+1e-6)
fn("att_hyena_window","reduction",hyena_filter,(37,22),ru(37),(22,),train=True)
def mingru_log(h,g):
    lc=-F.softplus(g); lz=-F.softplus(-g); lt=torch.where(h>=0,(F.relu(h)+.5).log(),-F.softplus(-h)); a=lc.cumsum(1); w=(lz+lt-a).clamp(max=20).exp(); return w.cumsum(1)*a.exp()
fn("att_mingru_cumsum","scan",mingru_log,(3,21,19),(3,21,19),train=True)
fn("att_mingru_step","pointwise",lambda p,h,g:torch.lerp(p,torch.where(h>=0,h+.5,h.sigmoid()),g.sigmoid()),(29,33),(29,33),(29,33),train=True)
def minlstm(f,i,h): d=F.softplus(-f)-F.softplus(-i); return (-F.softplus(d)).cumsum(1).exp()*h,-F.softplus(-d)
fn("att_minlstm_gates","scan",minlstm,(3,18,25),(3,18,25),(3,18,25),train=True)
def rglru(lam,x,r,i): la=-8*F.softplus(lam)*torch.sigmoid(r); return x*i.sigmoid()*torch.sqrt((1-torch.exp(2*la)).clamp(min=1e-6)),la.exp()
fn("att_rglru_gates","pointwise",rglru,(3,16,35),(3,16,35),(3,16,35),layers=lambda:(P(35),),train=True)
def lru(nu,th,x,y): m=torch.exp(-torch.exp(nu)); a=torch.exp(th); return m*a.cos()*x-m*a.sin()*y,m*a.sin()*x+m*a.cos()*y,torch.sqrt(1-m**2)
fn("att_lru_complex_step","pointwise",lru,(14,38),(14,38),layers=lambda:(P(38),P(38)),train=True)
def slstm(i,f,z,o,c,n,m): lf=F.logsigmoid(f); mn=torch.maximum(lf+m,i); a,b=(i-mn).exp(),(lf+m-mn).exp(); c=b*c+a*z.tanh(); n=b*n+a; return o.sigmoid()*c/n.clamp(min=1e-6),c,n,mn
fn("att_slstm_step","pointwise",slstm,*[(11,47)]*7,train=True)
def mlstm(q,k,v,i,f):
    T=q.shape[2]; c=F.logsigmoid(f).cumsum(-1); D=c[...,None]-c[...,None,:]+i[...,None,:]; D=torch.where(torch.ones(T,T).tril().bool(),D,INF); m=D.amax(-1,keepdim=True); s=q@k.mT*8**-.5*(D-m).exp()
    return s@v/(torch.maximum(s.sum(-1,keepdim=True).abs(),(-m).exp())+1e-6)
fn("att_mlstm_parallel","product",mlstm,(2,3,17,8),(2,3,17,8),(2,3,17,11),(2,3,17),(2,3,17),train=True)
def delta_step(S,k,v,b,a): k=F.normalize(k,dim=-1); S=S*a.exp()[...,None,None]; e=(v-(S*k[...,None]).sum(-2))*b.sigmoid()[...,None]; return S+k[...,None]*e[...,None,:]
fn("att_deltanet_step","reduction",delta_step,(3,4,9,13),(3,4,9),(3,4,13),(3,4),lambda:-torch.rand(3,4),train=True)
fn("att_delta_kkt","product",lambda k,b,g:(-(torch.einsum("bhid,bhjd->bhij",k*b[...,None],k)*(g[...,None]-g[...,None,:]).clamp(max=0).exp()).tril(-1)),(2,3,19,8),ru(2,3,19),(2,3,19),train=True)
fn("att_gdn_gate","pointwise",lambda al,dt,a,b:(-al.exp()*F.softplus(a+dt,threshold=20.0),2*b.sigmoid()),(4,31,7),(4,31,7),layers=lambda:(P(7),P(7)),train=True)
fn("att_aft_simple","reduction",lambda q,k,v:q.sigmoid()*(k.softmax(1)*v).sum(1,keepdim=True),(3,23,18),(3,23,18),(3,23,18),train=True)
fn("att_aft_full","product",lambda w,q,k,v:(lambda e,W:q.sigmoid()*(W@(e*v))/(W@e))((k-k.amax(1,keepdim=True)).exp(),w.exp()),(3,16,21),(3,16,21),(3,16,21),layers=lambda:(P(16,16),),train=True)
fn("att_causal_linear_cumsum","scan",lambda q,k,v:(lambda a,b:torch.einsum("btd,btde->bte",a,torch.einsum("btd,bte->btde",b,v).cumsum(1))/(a*b.cumsum(1)).sum(-1,keepdim=True).add(1e-6))(F.relu(q)+1e-3,k.relu()+1e-3),(2,14,7),(2,14,7),(2,14,10),train=True)
fn("att_ema_cummean","scan",lambda x:(x-x.cumsum(1)/torch.arange(1,x.shape[1]+1)[:,None]).sigmoid()*x,(3,22,25),train=True)
fn("att_gru_step","product",lambda wi,wh,x,h:(lambda a,b:(lambda r,z,n:(1-z)*n+z*h)((a[0]+b[0]).sigmoid(),(a[1]+b[1]).sigmoid(),(a[2]+(a[0]+b[0]).sigmoid()*b[2]).tanh()))(wi(x).chunk(3,-1),wh(h).chunk(3,-1)),(13,21),(13,27),layers=lambda:(nn.Linear(21,81),nn.Linear(27,81)),train=True)
# --- quantisation ---
i8=lambda *s:(lambda:torch.randint(-127,128,s).to(torch.int8)); u8=lambda *s:(lambda:torch.randint(0,256,s).to(torch.uint8))
fn("att_int8_linear","product",lambda x,w,s,b:F.gelu(x@(w.to(x.dtype)*s[:,None]).t()+b),(3,14,26),i8(43,26),ru(43),(43,))
fn("att_int8_postscale","product",lambda x,w,s:(F.linear(x,w.to(x.dtype))*s).clamp(-8,8)+0.5,rh(17,30),i8(45,30),rh(45))
fn("att_group_dequant","product",lambda x,w,s,z:x@((w.float().view(33,4,9)-z.unsqueeze(-1))*s.unsqueeze(-1)).view(33,36).mT,(15,36),u8(33,36),ru(33,4),ri(16,33,4))
fn("att_int4_unpack","pointwise",lambda w,s:((torch.stack([w&0xF,w>>4],-1).flatten(-2).to(torch.float32)-8).unflatten(-1,(5,8))*s[...,None]).flatten(1),u8(41,20),ru(41,5))
fn("att_int4_split_halves","product",lambda x,w,s:F.silu(x@torch.cat([(w&15).float()-8,((w>>4)&15).float()-8],0).mul(s)),(14,38),u8(19,27),ru(27))
def kvq(x):
    mx,mn=x.amax(-1,keepdim=True),x.amin(-1,keepdim=True); s=((mx-mn)/255.0).clamp(min=1e-6); q=((x-mn)/s).round().clamp(0,255).to(torch.uint8); return q,s,mn
fn("att_kv_quant_asym","reduction",kvq,(2,3,19,22))
fn("att_kv_quant_int8","reduction",lambda x:(lambda s:(torch.clamp(torch.round(x.float()/s),-128,127).to(torch.int8),s.to(x.dtype)))(x.float().abs().amax(-1,keepdim=True).clamp(min=1e-5)/127),rh(2,17,4,18))
fn("att_kv_dequant_scores","product",lambda q,k,s,z:((q@((k.float()-z)*s).mT)*11**-.5).softmax(-1),(2,3,9,11),u8(2,3,26,11),ru(2,3,26,1),lambda:torch.rand(2,3,26,1)*255)
fn("att_kv_perchannel","reduction",lambda k:(lambda s:torch.round(k/s).clamp(-7,7)*s)(k.abs().amax(dim=2,keepdim=True)/7+1e-8),(2,4,23,14))
class STE(nn.Module):
    def forward(s,x): sc=x.detach().abs().max()/127; q=torch.clamp(torch.round(x/sc),-127,127)*sc; return x+(q-x).detach()
add("att_fakequant_ste","reduction",lambda:(nn.Sequential(STE(),nn.GELU(),STE()),(R(4,17,29,requires_grad=True),)),True)
def lsq(s,x): v=x/s; c=v.clamp(-8,7); return ((c.round()-c).detach()+c)*s
fn("att_lsq","pointwise",lsq,(4,19,26),layers=lambda:(nn.Parameter(torch.full((26,),.1)),),train=True)
def ternary(w,x): s=1.0/w.abs().mean().clamp(min=1e-5); q=(w*s).round().clamp(-1,1)/s; return F.linear(x,w+(q-w).detach())
fn("att_bitlinear_158","product",ternary,(3,15,32),layers=lambda:(P(37,32),),train=True)
fn("att_act_quant_block","reduction",lambda x:(lambda y,s:((y/s).flatten(1).clamp(-448,448),s.squeeze(-1)))(x.view(21,5,9),x.view(21,5,9).abs().amax(-1,keepdim=True).clamp(min=1e-4)/448.0),(21,45))
fn("att_fakequant_zero_point","pointwise",lambda x,s,z:(torch.clamp((x*(1/s)).round()+z,0,15)-z)*s,(3,22,31),lambda:torch.rand(31)+.05,ri(16,31),train=True)
fn("att_smoothquant","reduction",lambda x,w:(lambda s:(x/s,w*s))((x.abs().amax((0,1))**.5/w.abs().amax(0).clamp(min=1e-5)**.5).clamp(min=1e-5)),(3,17,28),(45,28))
fn("att_int_mm_scales","product",lambda x,w,sx,sw,b:(x.float()@w.float().T)*sx[:,None]*sw[None]+b,i8(19,34),i8(27,34),ru(19),ru(27),(27,))
fn("att_nf4_lookup","product",lambda t,x,i,a:x@(t[i].view(22,4,8)*a[...,None]).reshape(22,32).t()*1.1,(13,32),ri(16,22,32),ru(22,4),layers=lambda:(P(16),))
fn("att_fp16_loss_scale","reduction",lambda g,s:(lambda f:(f*torch.clamp(1.0/(f.norm()+1e-6),max=1.0),torch.isfinite(f).all()))(g.float()/s),rf(27,38),lambda:torch.tensor([1024.0,512.0]).repeat(19))
# --- buckets, more attention ---
def t5bucket(q,k,nb=16,md=64):
    r=torch.arange(k)[None]-torch.arange(q)[:,None]; b=(r>0).long()*(nb//2); n=nb//2; a=r.abs(); ex=n//2
    lg=ex+(torch.log(a.clamp(min=1).float()/ex)/math.log(md/ex)*(n-ex)).long(); return b+torch.where(a<ex,a,lg.clamp(max=n-1))
fn("att_t5_bucket_compute","product",lambda e,q,k:((q@k.mT)+e[t5bucket(q.shape[-2],k.shape[-2])].permute(2,0,1)).float().softmax(-1),(2,3,19,8),(2,3,26,8),layers=lambda:(P(16,3),),train=True)
fn("att_bucketize_embed","pointwise",lambda e,x:e(torch.clamp((torch.log1p(x.abs())*4).long(),max=11))*x.sign().unsqueeze(-1),(3,22),layers=lambda:(nn.Embedding(12,27),))
def cpb(a,b,c,s): bias=16*torch.sigmoid(b(F.relu(a(torch.sign(c)*torch.log2(c.abs()+1)/3))))[:,:,:].permute(2,0,1); return (s+bias).softmax(-1)
fn("att_swin2_cpb","product",cpb,(15,15,2),(3,4,15,15),layers=lambda:(nn.Linear(2,26),nn.Linear(26,4,bias=False)),train=True)
fn("att_shaw_relative","product",lambda rk,q,k,i:(lambda r:((q@k.mT+torch.einsum("bhtd,tsd->bhts",q,r))/3).softmax(-1))(rk[(i[None]-i[:,None]).clamp(-4,4)+4]),(2,3,17,9),(2,3,17,9),lambda:torch.arange(17),layers=lambda:(P(9,9),),train=True)
fn("att_kerple_log","reduction",lambda a,b,s:(s-F.softplus(a)*torch.log1p(F.softplus(b)*(torch.arange(s.shape[-1])[None]-torch.arange(s.shape[-2])[:,None]).abs())).softmax(-1),(2,5,18,23),layers=lambda:(P(5,1,1),P(5,1,1)),train=True)
fn("att_fire_bias","pointwise",lambda c,L,s:s+torch.log((c.abs()*(torch.arange(21)[:,None]-torch.arange(21)).clamp(min=0).float()+1)/torch.log(L.abs()*torch.arange(21).clamp(min=3)[:,None]+1).clamp(min=.1)),(3,4,21,21),layers=lambda:(P(1),P(1)),train=True)
def forget(f,q,k,v):
    c=F.logsigmoid(f).cumsum(-1); s=q@k.mT*.35+c.unsqueeze(-1)-c.unsqueeze(-2); n=s.shape[-1]; return s.masked_fill(torch.ones(n,n).triu(1)>0,-1e30).softmax(-1)@v
fn("att_forgetting","product",forget,(2,3,19),(2,3,19,8),(2,3,19,8),(2,3,19,10),train=True)
def stick(s): 
    z=F.logsigmoid(s); lb=F.logsigmoid(-s).tril(-1); r=lb.flip(-1).cumsum(-1).flip(-1)-lb; return (z+r).exp().tril(-1)
fn("att_stickbreaking","scan",stick,(2,5,18,18),train=True)
fn("att_packed_docmask","product",lambda q,k,d:torch.where((d[:,:,None]==d[:,None,:])[:,None]&torch.ones(21,21,dtype=torch.bool).tril(),q@k.mT/8,INF).softmax(-1),(2,3,21,7),(2,3,21,7),ri(3,2,21))
fn("att_prefixlm_mask","reduction",lambda s,n:s.masked_fill(~((torch.arange(20)[None]<=torch.arange(20)[:,None])|(torch.arange(20)[None,None]<n[:,None,None]))[:,None],torch.finfo(torch.float32).min).softmax(-1),(3,4,20,20),ri(15,3),train=True)
fn("att_mask_1minus","reduction",lambda s,m:F.softmax(s/math.sqrt(13)+(1.0-m[:,None,None,:].float())*-10000.0,dim=-1),(3,4,14,25),ri(2,3,25),train=True)
fn("att_mask_mul_sub","reduction",lambda s,m:(s*m-1e10*(1-m)).softmax(-1),(3,4,15,18),lambda:torch.ones(18,18).tril()[-15:],train=True)
fn("att_masked_sm_nan_safe","reduction",lambda s,m:torch.softmax(s.masked_fill(~m,INF),-1).masked_fill(~m,0.).nan_to_num(0.0),(3,4,13,22),rb(.5,3,1,13,22))
fn("att_masked_sm_renorm","reduction",lambda s,m:(lambda e:e/(e.sum(-1,keepdim=True)+1e-13))(s.softmax(-1)*m),(4,17,31),lambda:(torch.rand(4,1,31)<.8).float(),train=True)
fn("att_exp_sub_max","reduction",lambda s:(lambda e:e/e.sum(dim=-1,keepdim=True))(torch.exp(s-s.max(dim=-1,keepdim=True)[0].detach())),(3,5,16,23),train=True)
fn("att_softmax_dim1_t","reduction",lambda s,b:F.softmax((s.permute(0,2,3,1)+b)*1.44,1),(3,6,17,22),(6,),train=True)
fn("att_slot_attn","product",lambda q,k,v:(lambda a:torch.einsum("bns,bnd->bsd",a/(a.sum(1,keepdim=True)),v))(torch.einsum("bnd,bsd->bns",k,q).mul(.3).softmax(-1)+1e-8),(3,5,14),(3,27,14),(3,27,18),train=True)
fn("att_entmax_like_relu","reduction",lambda s:(lambda r:r/r.sum(-1,keepdim=True).clamp(min=1e-6))(F.relu((s-s.amax(-1,keepdim=True)).mul(.5)+1)**2),(2,5,18,21),train=True)
fn("att_hedgehog","product",lambda w,q:torch.cat([torch.softmax(q@w,-1),torch.softmax(-(q@w),-1)],-1).clamp(min=1e-6),(2,3,19,14),layers=lambda:(P(14,14),),train=True)
fn("att_based_taylor","pointwise",lambda x:torch.cat([torch.ones_like(x[...,:1]),x/9**.25,(x[...,None]*x[...,None,:]).flatten(-2)/(2**.5*3)],-1),(2,3,14,9),train=True)
fn("att_rfa_sincos","product",lambda w,x:(lambda p:torch.cat([p.sin(),p.cos()],-1)*17**-.5*torch.exp(x.square().sum(-1,keepdim=True)/2))(x@w),(2,3,18,8),layers=lambda:(P(8,17),),train=True)
fn("att_cosformer","product",lambda q,k,v:(lambda a,t:torch.cat([F.relu(q)*a.sin(),q.relu()*a.cos()],-1)@(torch.cat([F.relu(k)*a.sin(),k.relu()*a.cos()],-1).mT@v))(math.pi/2*torch.arange(1,20)[:,None]/19,0),(2,3,19,7),(2,3,19,7),(2,3,19,10),train=True)
fn("att_nystrom_lm","product",lambda q,k:(q.reshape(2,3,5,4,9).mean(-2)@k.mT/3).softmax(-1),(2,3,20,9),(2,3,26,9),train=True)
fn("att_linformer","product",lambda e,f,q,k,v:((q@torch.einsum("nr,bhnd->bhrd",e,k).mT)*9**-.5).softmax(-1)@torch.einsum("nr,bhnd->bhrd",f,v),(2,3,22,9),(2,3,22,9),(2,3,22,9),layers=lambda:(P(22,6),P(22,6)),train=True)
fn("att_channel_xca","product",lambda t,q,k,v:((F.normalize(q,dim=-1)@F.normalize(k,dim=-1).transpose(-2,-1))*t).softmax(-1)@v,(2,3,11,26),(2,3,11,26),(2,3,11,26),layers=lambda:(P(3,1,1),),train=True)
fn("att_external_doublenorm","product",lambda mk,mv,x:(lambda a:(a/(1e-9+a.sum(1,keepdim=True)))@mv)((x@mk.t()).softmax(-1)),(3,21,14),layers=lambda:(P(18,14),P(18,14)),train=True)
fn("att_mla_scores","product",lambda qn,qr,c,kr,m:((torch.einsum("bthc,bsc->bhts",qn,c)+torch.einsum("bthr,bsr->bhts",qr,kr))*(21**-.5)+m).softmax(-1,dtype=torch.float32),(2,11,3,15),(2,11,3,6),(2,23,15),(2,23,6),(11,23),train=True)
def mla_kv(n,x,c,s): a,r=x.split([19,8],-1); return n(a),r*c+rot_half(r)*s
fn("att_mla_kv_split","norm",mla_kv,(3,18,27),(18,8),(18,8),layers=lambda:(nn.RMSNorm(19,eps=1e-6),),train=True)
fn("att_value_residual","product",lambda l,v,v0,s:torch.softmax(s,-1)@torch.lerp(v,v0,l.sigmoid()),(2,3,18,11),(2,3,18,11),(2,3,14,18),layers=lambda:(P(3,1,1),),train=True)
fn("att_headwise_gate","pointwise",lambda l,o,x:(o*torch.sigmoid(l(x)).unsqueeze(-1)).flatten(-2),(2,19,5,9),(2,19,22),layers=lambda:(nn.Linear(22,5),),train=True)
fn("att_logn_scale_q","pointwise",lambda q,c,s:(lambda y:y*torch.where(torch.arange(1,20)>8,torch.log(torch.arange(1,20).float())/math.log(8),1.0)[:,None])(q*c+rot_half(q)*s),(2,5,19,14),(19,14),(19,14),train=True)
fn("att_key_conv_mean","pointwise",lambda w,k:F.silu(k*w[0]+F.pad(k,(0,0,1,-1))*w[1])/(k.abs().mean(-1,keepdim=True)+1e-3),(2,5,18,13),layers=lambda:(P(2,13),),train=True)
def nsa_cmp(w,k): u=k.unfold(2,8,4); return (u*w.softmax(0)).sum(-1),u.amax(-1)
fn("att_nsa_compress","reduction",nsa_cmp,(2,3,28,10),layers=lambda:(P(8),),train=True)
fn("att_block_score_pool","reduction",lambda s:(s.unflatten(-1,(6,5)).amax(-1)-torch.where(torch.arange(6)[None]>(torch.arange(22)//5)[:,None],1e9,0.0)).softmax(-1),(2,3,22,30))
fn("att_h2o_accum","reduction",lambda s,m:(lambda p:(p.sum(-2),p[...,-4:,:].mean(-2)))(s.masked_fill(m,-1e4).softmax(-1)),(2,3,17,26),rb(.3,17,26))
fn("att_snapkv_pool","pool",lambda s:F.avg_pool1d(s.softmax(-1)[...,-5:,:].sum(-2),5,stride=1,padding=2)*1.5+s.mean(-2),(2,7,11,40))
fn("att_rollout","product",lambda a,b:(lambda n:n(a)@n(b))(lambda t:(lambda u:u/u.sum(-1,keepdim=True))(t.softmax(-1).mean(1)+torch.eye(21))),(2,4,21,21),(2,4,21,21))
fn("att_distill_map_mse","loss",lambda a,b,m:(((a.softmax(-1)-b.softmax(-1)).pow(2)).sum(-1)*m[:,None]).sum()/(4*m.sum()),(2,4,13,19),(2,4,13,19),rb(.8,2,13),train=True)
fn("att_hidden_distill_cos","loss",lambda l,s,t:(1-F.cosine_similarity(l(s),t,dim=-1)).mean()+F.smooth_l1_loss(l(s),t,beta=.5),(3,15,18),(3,15,27),layers=lambda:(nn.Linear(18,27),),train=True)
fn("att_biaffine","product",lambda w,u,a,b:torch.einsum("bid,de,bje->bij",a,w,b)+(a@u)[:,:,None]-(b@u)[:,None],(3,17,14),(3,21,14),layers=lambda:(P(14,14),P(14)),train=True)
fn("att_additive_bahdanau","reduction",lambda v,q,k,m:(torch.tanh(q[:,:,None]+k[:,None])*v).sum(-1).masked_fill(m[:,None],INF).softmax(-1),(2,11,18),(2,15,18),rb(.2,2,15),layers=lambda:(P(18),),train=True)
fn("att_gat_leaky","reduction",lambda q,k,adj:F.softmax(F.leaky_relu(q.unsqueeze(2)+k.unsqueeze(1),0.2).masked_fill(~adj[...,None],-9e15),dim=2),(2,19,5),(2,19,5),rb(.6,2,19,19),train=True)
fn("att_pointer_copy","reduction",lambda g,v,a,ids:(lambda p:torch.log(p*v.softmax(-1)+(1-p)*(a.softmax(-1)[...,None]*F.one_hot(ids,23)).sum(-2)+1e-12))(g.sigmoid()),(3,9,1),(3,9,23),(3,9,14),ri(23,3,1,14),train=True)
fn("att_span_logits","loss",lambda l,x,s,e:(lambda a,b:(F.cross_entropy(a.squeeze(-1),s)+F.cross_entropy(b.squeeze(-1),e))/2)(*l(x).split(1,-1)),(9,31,22),ri(31,9),ri(31,9),layers=lambda:(nn.Linear(22,2),),train=True)
fn("att_tok_bce_posw","loss",lambda pw,x,y,m:(F.binary_cross_entropy_with_logits(x,y,pos_weight=pw.exp().detach(),reduction="none").mean(-1)*m).sum()/m.sum().clamp_min(1.),(3,16,21),ru(3,16,21),rb(.7,3,16),layers=lambda:(P(21),),train=True)
fn("att_hl_gauss_value","loss",lambda lg,t:(lambda c:-((c[:,1:]-c[:,:-1])/(c[:,-1:]-c[:,:1]).clamp_min(1e-6)*lg.log_softmax(-1)).sum(-1).mean())(torch.erf((torch.linspace(-3,3,32)[None]-t[:,None])/(.4*2**.5))),(27,31),(27,),train=True)
fn("att_evoformer_tri","product",lambda l,a,b,ga,gb,go:go.sigmoid()*l(torch.einsum("bikc,bjkc->bijc",a*ga.sigmoid(),b*torch.sigmoid(gb))),*[(2,9,9,14)]*5,layers=lambda:(nn.LayerNorm(14),),train=True)
fn("att_outer_mean","product",lambda l,a,b,m:l((torch.einsum("bsic,bsjd->bijcd",a*m[...,None],b)/(m.sum(1)[:,:,None,None,None]+1e-3)).flatten(-2)),(2,6,9,5),(2,6,11,4),ru(2,6,9),layers=lambda:(nn.Linear(20,13),),train=True)
fn("att_perceiver_resample","product",lambda lat,n,x:(lambda kv:((lat@kv.mT*14**-.5).sub(0.1).softmax(-1)@kv)+lat)(torch.cat([n(x),lat.expand(x.shape[0],-1,-1)],1)),(3,21,14),layers=lambda:(P(6,14),nn.LayerNorm(14)),train=True)
fn("att_film_gate_tanh","block",lambda g,l,x,y:x+g.tanh()*l(y).relu(),(3,17,22),(3,17,22),layers=lambda:(P(1),nn.Linear(22,22)),train=True)
fn("att_parallel_block","block",lambda n,a,b,o,x:x+o(torch.cat([a(n(x)),F.gelu(b(n(x)))],-1)),(3,14,22),layers=lambda:(nn.LayerNorm(22,bias=False),nn.Linear(22,22),nn.Linear(22,60),nn.Linear(82,22)),train=True)
class Blk(nn.Module):
    def __init__(s,d,h,f): super().__init__(); s.h=h; s.a=nn.RMSNorm(d); s.b=nn.RMSNorm(d); s.q=nn.Linear(d,d,bias=False); s.k=nn.Linear(d,d//h,bias=False); s.v=nn.Linear(d,d//h,bias=False); s.o=nn.Linear(d,d,bias=False); s.m=SwiGLU(d,f); s.register_buffer("mask",torch.ones(40,40,dtype=torch.bool).triu(1))
    def forward(s,x,cos,sin):
        B,T,D=x.shape; y=s.a(x); q=s.q(y).view(B,T,s.h,-1).transpose(1,2); k=s.k(y)[:,None]; v=s.v(y)[:,None]
        q,k=rms(q*cos+rot_half(q)*sin),rms(k*cos+rot_half(k)*sin); w=20*torch.tanh(q@k.mT*(D//s.h)**-.5/20); w=w.masked_fill(s.mask[:T,:T],INF).softmax(-1,dtype=torch.float32).type_as(q)
        x=x+s.o((w@v).transpose(1,2).flatten(2)); return s.m(s.b(x))
add("att_decoder_block","block",lambda:(Blk(30,3,46),(R(2,17,30,requires_grad=True),R(17,10),R(17,10))),False)
add("att_decoder_block_bf16","block",lambda:(Blk(36,3,50).bfloat16(),(R(2,13,36).bfloat16(),R(13,12).bfloat16(),R(13,12).bfloat16())))
class Conf(nn.Module):
    def __init__(s,d): super().__init__(); s.n=nn.LayerNorm(d); s.p=nn.Conv1d(d,2*d,1); s.c=nn.Conv1d(d,d,7,padding=3,groups=d); s.b=nn.BatchNorm1d(d); s.o=nn.Conv1d(d,d,1)
    def forward(s,x): return x+.5*s.o(F.silu(s.b(s.c(F.glu(s.p(s.n(x).transpose(1,2)),1))))).transpose(1,2)
add("att_conformer_conv","conv",lambda:(Conf(22),(R(3,19,22,requires_grad=True),)),True)
fn("att_mem_compress_mean","pool",lambda x,m:torch.cat([x,F.avg_pool1d(m.mT,3,3).mT*.9],1).sub(0.1).relu(),(3,7,26),(3,21,26),train=True)
fn("att_ttt_update","product",lambda W,k,v,e:W-e.sigmoid()*torch.einsum("bhtd,bhte->bhde",k,2*(k@W-v))/k.shape[2],(2,3,9,9),(2,3,17,9),(2,3,17,9),(3,1,1),train=True)
fn("att_muon_ns_step","product",lambda G:(lambda X:(lambda A:3.4445*X+(-4.7750*A+2.0315*A@A)@X)(X@X.mT))(G.bfloat16()/(G.norm()+1e-7)),(22,45))
fn("att_adamw_step","pointwise",lambda p,g,m,v:(lambda a,b:(p*(1-1e-2*.1)-1e-2*(a/(1-.9**3))/((b/(1-.999**3)).sqrt()+1e-8),a,b))(m.lerp(g,.1),v*.999+.001*g*g),(27,38),(27,38),(27,38),ru(27,38))
fn("att_byte_patch_pool","reduction",lambda x,i:torch.einsum("bts,btd->bsd",(lambda o:o/o.sum(1,keepdim=True).clamp(min=1))(F.one_hot(i,9).float()),x)+0.5,(2,31,18),ri(9,2,31),train=True)
# --- further combinations ---
fn("att_qkv_einsum_rope","product",lambda w,x,c,s:(lambda y:torch.stack([y[0]*c+rot_half(y[0])*s,y[1]*c+rot_half(y[1])*s,y[2]]))(torch.einsum("btd,cdhe->cbhte",x,w)),(2,15,22),(15,8),(15,8),layers=lambda:(P(3,22,5,8),),train=True)
fn("att_qkv_bias_scale","product",lambda l,x:(lambda q,k,v:(q*7**-.5,k.tanh(),F.elu(v)))(*l(x).view(3,14,3,5,7).movedim(2,0).unbind(0)),(3,14,26),layers=lambda:(nn.Linear(26,105),),train=True)
fn("att_out_merge_resid","product",lambda l,n,x,o:n(x+l(o.permute(0,2,1,3).reshape(2,19,-1))),(2,19,30),(2,5,19,6),layers=lambda:(nn.Linear(30,30),nn.LayerNorm(30)),train=True)
fn("att_out_einsum_gate","product",lambda w,g,x,o:x+g*torch.einsum("bhtd,hdm->btm",o,w),(2,18,26),(2,3,18,11),layers=lambda:(P(3,11,26),P(26)),train=True)
fn("att_scores_baddbmm","product",lambda q,k,b:torch.baddbmm(b,q,k.mT,beta=1.0,alpha=9**-.5).clamp(-30,30).softmax(-1),(6,17,9),(6,22,9),(6,17,22),train=True)
fn("att_bmm_bloom","product",lambda q,k,al,m:(lambda s:torch.masked_fill(s.view(2,3,17,22),m,torch.finfo(s.dtype).min).softmax(-1))(torch.bmm(q,k)*.3+al),(6,17,9),(6,9,22),(6,1,22),rb(.3,2,1,17,22),train=True)
fn("att_scores_3d_negdist","product",lambda q,k,m:(-(q.square().sum(-1,keepdim=True)+k.square().sum(-1)[:,None]-2*q@k.mT).clamp(min=0)/2.5).masked_fill(m,-1e9).softmax(-1),(3,19,8),(3,26,8),rb(.2,3,1,26),train=True)
fn("att_gauss_kernel","product",lambda g,q,k,v:(lambda d:torch.exp(-g.exp()*d)@v/(torch.exp(-g.exp()*d).sum(-1,keepdim=True)+1e-6))((q.unsqueeze(2)-k.unsqueeze(1)).pow(2).sum(-1)),(2,13,7),(2,16,7),(2,16,11),layers=lambda:(P(1),),train=True)
fn("att_relu_seqlen","product",lambda q,k,v:(F.relu(torch.einsum("thd,shd->hts",q,k)*.25)/k.shape[0])@v.transpose(0,1),(19,3,10),(25,3,10),(25,3,14),train=True)
fn("att_swish_scores_f16","product",lambda q,k:F.silu((q@k.transpose(1,2)).float()/3.0).div(21).half(),rf(4,18,12),rf(4,21,12))
fn("att_seq_first","product",lambda q,k,v,m:(lambda a:(torch.einsum("bhts,sbhd->tbhd",a,v),a.mean(1)))((torch.einsum("tbhd,sbhd->bhts",q,k)*9**-.5+m).softmax(3)),(15,2,3,9),(22,2,3,9),(22,2,3,9),(15,22),train=True)
fn("att_varlen_bias_sum","reduction",lambda s,a,b,c:((s+a[None,:,None]+b.unsqueeze(-1)+c[:,None,None,:])/1.5).softmax(-1),(2,3,17,22),(3,22),(3,17),(2,22),train=True)
fn("att_logits_max_clip","reduction",lambda s:(s*torch.clamp(50/s.amax((-2,-1),keepdim=True).clamp(min=1e-3),max=1.0)**.5),(3,5,18,21))
fn("att_scores_mask_and","reduction",lambda s,a,b:F.softmax(s.where(a[:,None,:,None]&b[:,None,None,:],s.new_tensor(-1e4)),-1)*a[:,None,:,None],(2,5,14,23),rb(.8,2,14),rb(.8,2,23),train=True)
fn("att_causal_float_mask","reduction",lambda s:(s+torch.full((s.shape[-1],s.shape[-1]),INF).triu(1)).softmax(-1).mean(1),(2,5,23,23),train=True)
fn("att_causal_cols","reduction",lambda s:torch.softmax(torch.where(torch.arange(s.shape[-1])>torch.arange(s.shape[-2]).unsqueeze(-1)+6,-3.4e38,s*.5),-1),(3,4,15,21),train=True)
fn("att_band_global","reduction",lambda s:(lambda i,j:s.masked_fill(~(((i-j).abs()<=3)|(j<2)|(i<2)|((i-j)%8==0)),-1e9).softmax(-1))(torch.arange(22)[:,None],torch.arange(22)[None]),(2,3,22,22),train=True)
fn("att_neighborhood1d","product",lambda q,k,b:((q.unsqueeze(-2)*F.pad(k,(0,0,2,2)).unfold(2,5,1).mT).sum(-1)*.3+b).softmax(-1),(2,3,21,9),(2,3,21,9),(3,1,5),train=True)
fn("att_window_unfold_v","reduction",lambda a,v:(a.softmax(-1).unsqueeze(-2)*F.pad(v,(0,0,4,0)).unfold(2,5,1)).sum(-1),(2,3,17,5),(2,3,17,8),train=True)
fn("att_dynamic_conv","reduction",lambda l,x:(l(x).view(3,17,5,1,3).softmax(-1)*F.pad(x,(0,0,2,0)).unfold(1,3,1).view(3,17,5,4,3)).sum(-1).flatten(2),(3,17,20),layers=lambda:(nn.Linear(20,15),),train=True)
fn("att_grid_maxvit","norm",lambda l,x:l(x.view(2,4,3,5,2,22).permute(0,2,4,1,3,5).reshape(-1,20,22))*0.5,(2,12,10,22),layers=lambda:(nn.LayerNorm(22),),train=True)
fn("att_patch_merge","norm",lambda n,l,x:l(n(torch.cat([x[:,0::2,0::2],x[:,1::2,0::2],x[:,0::2,1::2],x[:,1::2,1::2]],-1))),(2,8,10,14),layers=lambda:(nn.LayerNorm(56),nn.Linear(56,28,bias=False)),train=True)
fn("att_pixel_shuffle_tokens","pointwise",lambda x:F.gelu(x.view(2,6,8,15).reshape(2,3,2,4,2,15).permute(0,1,3,2,4,5).reshape(2,12,60)*1.3-.2),(2,48,15),train=True)
fn("att_tome_merge","reduction",lambda x,i:(lambda a,b:(b+torch.einsum("bts,btd->bsd",F.one_hot(i,b.shape[1]).float(),a))/(1+F.one_hot(i,b.shape[1]).sum(1)[...,None]))(x[:,::2],x[:,1::2]),(2,26,18),ri(13,2,13),train=True)
fn("att_tome_scores","product",lambda k:(lambda m:(m[:,::2]@m[:,1::2].mT).sub(.1).max(-1))(k.mean(1)/k.mean(1).norm(dim=-1,keepdim=True)),(2,3,30,13))
fn("att_token_prune_gate","pointwise",lambda w,x:(lambda s:(x*(s>0.5).float()*s,s.mean()))(torch.sigmoid(((x*w).sum(-1,keepdim=True)-.1)*5)),(3,22,31),layers=lambda:(P(31),),train=True)
fn("att_mod_router_mix","pointwise",lambda x,y,r,i:torch.where((torch.arange(19)[None,:,None]==i[:,None]).any(-1,keepdim=True),x+y*r.sigmoid().unsqueeze(-1),x),(3,19,26),(3,19,26),(3,19),ri(19,3,4),train=True)
fn("att_stoch_depth_given","pointwise",lambda g,x,y,k:x+g*y/0.9*k[:,None,None],(5,14,28),(5,14,28),lambda:(torch.rand(5)<.9).float(),layers=lambda:(P(28),),train=True)
fn("att_dropout_mask_given","reduction",lambda s,k,v:(s.softmax(-1)*k/.8).sum(-1,keepdim=True)*v,(3,4,18,21),lambda:(torch.rand(3,4,18,21)<.8).float(),(3,4,18,9),train=True)
fn("att_rezero_two","block",lambda a,l,m,x:(lambda y:y+a*m(F.silu(y)))(x+a*l(x)),(3,17,26),layers=lambda:(nn.Parameter(torch.full((1,),.1)),nn.Linear(26,26),nn.Linear(26,26)),train=True)
fn("att_highway_tokens","product",lambda t,h,x:(lambda g:g*h(x).relu()+(1-g)*x)(torch.sigmoid(t(x)-2)),(3,19,24),layers=lambda:(nn.Linear(24,24),nn.Linear(24,24)),train=True)
fn("att_gru_gate_xl","product",lambda wr,wz,wg,x,y:(lambda r,z:(1-z)*x+z*torch.tanh(F.linear(torch.cat([y,r*x],-1),wg)))(F.linear(torch.cat([y,x],-1),wr).sigmoid(),(F.linear(torch.cat([y,x],-1),wz)-1.0).sigmoid()),(2,15,18),(2,15,18),layers=lambda:(P(18,36),P(18,36),P(18,36)),train=True)
fn("att_layer_mix_elmo","reduction",lambda w,g,x:g*(w.softmax(0).view(-1,1,1,1)*x).sum(0),(5,2,17,26),layers=lambda:(P(5),P(1)),train=True)
fn("att_denseformer_avg","reduction",lambda w,*xs:sum(a*x for a,x in zip(w,xs))/w.abs().sum(),(3,14,27),(3,14,27),(3,14,27),(3,14,27),layers=lambda:(P(4),),train=True)
fn("att_value_embed_mix","pointwise",lambda l,e,v,i:l[0]*v+l[1]*e(i).view_as(v),(2,18,3,8),ri(33,2,18),layers=lambda:(P(2),nn.Embedding(33,24)),train=True)
fn("att_engram_gate","reduction",lambda e,h,i:(lambda m:h+torch.sigmoid((rms(h)*rms(m)).sum(-1,keepdim=True)/math.sqrt(26))*m)(e(i).sum(2)),(2,17,26),ri(40,2,17,3),layers=lambda:(nn.Embedding(40,26),),train=True)
fn("att_ngram_hash_embed","pointwise",lambda e,i:F.silu(e((i*31+F.pad(i,(1,0))[:,:-1]*17+3)%53))*.5,ri(90,3,22),layers=lambda:(nn.Embedding(53,26),),train=True)
fn("att_char_mix_max","pool",lambda e,c,i:F.relu(c(e(i).flatten(0,1).mT)).amax(-1).view(2,9,-1),ri(40,2,9,11),layers=lambda:(nn.Embedding(40,10),nn.Conv1d(10,22,3,padding=1)),train=True)
fn("att_axial_pos_embed","norm",lambda r,c,n,x:n(x+torch.cat([c[None].expand(7,-1,-1),r[:,None].expand(-1,9,-1)],-1).flatten(0,1)),(2,63,22),layers=lambda:(P(7,11),P(9,11),nn.LayerNorm(22)),train=True)
fn("att_fourier_pos2d","pointwise",lambda B,xy:(lambda p:torch.cat([p.sin(),p.cos(),xy],-1))(2*math.pi*(2*xy-1)@B),ru(3,41,2),layers=lambda:(P(2,15,scale=1.),),train=True)
fn("att_factor_embed_proj","product",lambda e,l,n,i,s:n(l(e(i))*s.unsqueeze(-1)+1/3),ri(50,3,19),(3,19),layers=lambda:(nn.Embedding(50,9),nn.Linear(9,34),nn.LayerNorm(34)),train=True)
fn("att_mup_resid_depth","norm",lambda w,x,y:(F.rms_norm(x+y*(1.4/math.sqrt(40)),(34,),w)*0.75,x+y*(1.4/math.sqrt(40))),rh(2,17,34),rh(2,17,34),layers=lambda:(P(34).to(torch.bfloat16).detach().requires_grad_(),))
fn("att_rms_fp32_mul_after","norm",lambda w,x:((x.to(torch.float32)*x.float().pow(2).mean(-1,keepdim=True).add(1e-6).rsqrt())*w).half(),rf(4,13,37),layers=lambda:(P(37),))
fn("att_rms_heads_split","norm",lambda w,x:(lambda y:(y/(y.square().mean(-1,keepdim=True)+1e-6).sqrt()*w[:,None]).transpose(1,2).reshape(2,17,-1))(x.reshape(2,17,4,9).transpose(1,2)),(2,17,36),layers=lambda:(P(4,9),),train=True)
fn("att_ln_two_heads","norm",lambda a,b,x,y:(a(x+y),b(x-y).tanh()),(3,15,38),(15,38),layers=lambda:(nn.LayerNorm(38),nn.LayerNorm(38,elementwise_affine=False)),train=True)
fn("att_cond_ln","norm",lambda g,b,n,x,c:n(x)*(1+g(c)[:,None])+b(c)[:,None],(3,19,26),(3,14),layers=lambda:(nn.Linear(14,26),nn.Linear(14,26),nn.LayerNorm(26,elementwise_affine=False)),train=True)
fn("att_batchnorm_tokens","norm",lambda b,x:b(x.flatten(0,1)).view_as(x).relu()+x,(3,21,22),layers=lambda:(nn.BatchNorm1d(22),),train=True)
fn("att_centernorm_l1","norm",lambda a,x:a*(x-x.mean(-1,keepdim=True))/(x-x.mean(-1,keepdim=True)).abs().mean(-1,keepdim=True).clamp(min=1e-4),(3,18,35),layers=lambda:(P(35),),train=True)
fn("att_normed_softmax_z","loss",lambda lg,y,w:(F.cross_entropy(lg.mT,y,weight=w.detach().exp(),reduction="sum")/y.numel()+1e-3*lg.square().mean()),(3,17,28),ri(28,3,17),(28,),train=True)
fn("att_arcface_margin","loss",lambda w,x,y:(lambda c:F.cross_entropy(16*torch.where(F.one_hot(y,23)>0,c*math.cos(.3)-(1-c*c).clamp(min=1e-6).sqrt()*math.sin(.3),c),y))(F.normalize(x)@F.normalize(w).t()),(31,18),ri(23,31),layers=lambda:(P(23,18),),train=True)
fn("att_listmle_given","loss",lambda s,r:((s.flip(-1).exp().cumsum(-1).flip(-1)+1e-8).log()-s).mul(r).sum(-1).mean(),(13,42),ru(13,42),train=True)
fn("att_listnet_soft","loss",lambda s,t,m:-(t.masked_fill(m,-1e9).softmax(-1)*s.masked_fill(m,-1e9).log_softmax(-1)).sum(-1).mean(),(14,43),(14,43),rb(.2,14,43),train=True)
fn("att_plackett_pair","loss",lambda s,t:(F.softplus(-(s[:,:,None]-s[:,None]))*(t[:,:,None]>t[:,None])).sum((1,2))/(t[:,:,None]>t[:,None]).sum((1,2)).clamp(min=1),(5,21),(5,21),train=True)
fn("att_reverse_kl_tok","loss",lambda p,q,m:(((p.softmax(-1)*(p.log_softmax(-1)-q.log_softmax(-1))).sum(-1)*m).sum(-1)/m.sum(-1).clamp(min=1)).mean(),rh(2,15,38),rh(2,15,38),ru(2,15),train=True)
fn("att_mc_choice_loss","loss",lambda l,h,y:F.cross_entropy(l(torch.tanh(h[:,:,0])).squeeze(-1),y),(31,5,3,22),ri(5,31),layers=lambda:(nn.Linear(22,1),),train=True)
fn("att_dapo_tokenmean","loss",lambda lp,old,a,m:(lambda r:-(torch.where(a[:,None]<0,torch.maximum(torch.min(r*a[:,None],r.clamp(.8,1.28)*a[:,None]),3*a[:,None]),torch.min(r*a[:,None],r.clamp(.8,1.28)*a[:,None]))*m).sum()/m.sum())(((lp-old).clamp(-10,10)).exp()),(13,47),(13,47),(13,),ru(13,47),train=True)
fn("att_vf_distill_mask","loss",lambda l,h,r,m:(lambda v:(torch.max((v-r)**2,(v.clamp(-1,1)-r).square())*m).sum()/(m.sum()+1e-5))(l(h)[...,0]),(3,19,26),(3,19),rb(.8,3,19),layers=lambda:(nn.Linear(26,1),),train=True)
fn("att_whisper_block_ffn","block",lambda n,a,b,x:torch.clamp(x+b(F.gelu(a(n(x.float()).type_as(x)))),-6e4,6e4),rf(2,15,26),layers=lambda:(nn.LayerNorm(26),nn.Linear(26,62).half(),nn.Linear(62,26).half()))
fn("att_qk_rope_slices_cat","pointwise",lambda qkv,c,s:(lambda r:torch.cat([r*c[:,None]+rot_half(r)*s[:,None],qkv[:,:,8:]],2))(qkv[:,:,:8]),(2,17,11,14),(17,14),(17,14),train=True)
fn("att_rope_neg_sin_outer","pointwise",lambda x,f:(lambda a:x*a.cos().repeat(1,2)[None,None]+torch.stack([-x[...,1::2],x[...,::2]],-1).reshape(x.shape)*a.sin().repeat_interleave(2,-1))(torch.arange(18)[:,None]*f),(2,5,18,12),ru(6),train=True)
fn("att_rope_mrope_sections","pointwise",lambda q,c,s:(lambda C,S:q*C+rot_half(q)*S)(torch.cat([m[i%3] for i,m in enumerate(c.split([2,3,3]*2,-1))],-1).unsqueeze(1),torch.cat([m[i%3] for i,m in enumerate(s.split([2,3,3]*2,-1))],-1).unsqueeze(1)),(2,5,19,16),(3,2,19,16),(3,2,19,16),train=True)
fn("att_rope_ntk_temp","pointwise",lambda x,t:(lambda a:x[...,:11]*a.cos()-x[...,11:]*a.sin())(t[:,None]*(10000*4**(22/20))**(-torch.arange(0,22,2)/22)),(2,5,21,22),ru(21),train=True)
fn("att_rope_inverse_out","pointwise",lambda o,c,s:(o*c-rot_half(o)*s).transpose(1,2).flatten(2),(2,3,19,14),(19,14),(19,14),train=True)
fn("att_cope_gates","scan",lambda s:(s.sigmoid().flip(-1).cumsum(-1).flip(-1).clamp(max=12.0)*.2+s),(2,5,18,23),train=True)
fn("att_cope_interp","scan",lambda g,e:(lambda p:(lambda lo,hi:e.gather(-1,hi)*(p-lo)+e.gather(-1,lo)*(1-p+lo))(p.floor().long(),p.ceil().long()))(g.sigmoid().flip(-1).cumsum(-1).flip(-1).clamp(max=11.0)),(2,3,17,17),(2,3,17,12))
fn("att_deberta_c2p","reduction",lambda s,c,i:(s+c.gather(-1,i.expand_as(s)))*(3*9)**-.5,(2,3,19,19),(2,3,19,16),ri(16,1,1,19,19),train=True)
fn("att_longformer_chunks","product",lambda q,k:(lambda a,b:torch.einsum("bcxd,bcyd->bcxy",a,b).mul(.3).tanh())(q.unfold(1,8,4).mT,k.unfold(1,8,4).mT),(2,28,9),(2,28,9),train=True)
fn("att_reformer_share_qk","product",lambda qk:(lambda s:s.masked_fill(torch.eye(21,dtype=torch.bool),-5e4).softmax(-1))(qk@F.normalize(qk,dim=-1).mT*11**-.5),(2,3,21,11),train=True)
fn("att_routing_centroid","product",lambda mu,x:(lambda d:(d.amax(-1),d.argmax(-1),F.one_hot(d.argmax(-1),6).float().mean(1)))(F.layer_norm(x,(14,))@F.normalize(mu,dim=-1).t()),(3,27,14),layers=lambda:(P(6,14),))
fn("att_vq_commit","loss",lambda e,z:(lambda i:(z+(e[i]-z).detach(),.25*F.mse_loss(z,e[i].detach()),i))((z.pow(2).sum(-1,keepdim=True)-2*z@e.t()+e.pow(2).sum(1)).argmin(-1)),(3,21,10),layers=lambda:(P(25,10),))
fn("att_fsq_round","pointwise",lambda z,l:(lambda b:(b+(b.round()-b).detach())/(l//2))(torch.tanh(z+torch.atanh((1-l%2)*.5/(l*.5)))*((l-1)*.5)),(5,41,6),lambda:torch.tensor([8,5,5,7,3,9]).repeat(1),train=True)
fn("att_lfq_entropy","loss",lambda z:(lambda p:((-(p*(p+1e-6).log()+(1-p)*(1-p+1e-6).log())).sum(-1).mean(),torch.where(z>0,1.0,-1.0)))((z*2/.01).clamp(-20,20).sigmoid()),(4,23,14),train=True)
fn("att_kv_cache_scatter_where","pointwise",lambda c,n,p,s:torch.where((p[:,None]==torch.arange(25))[:,None,:,None],(n*s).to(c.dtype),c),rh(3,2,25,12),rh(3,2,1,12),ri(25,3),rh(3,1,1,1))
fn("att_kv_cache_roll","pointwise",lambda c,n:(torch.cat([c.roll(-1,2)[:,:,:-1],n.clamp(-5,5)],2)*1.0+0.1),(2,3,21,14),(2,3,1,14))
fn("att_kv_cache_int8_cat","product",lambda q,k8,s,kn:torch.softmax(torch.cat([(q@(k8.to(q.dtype)*s).mT),q@kn.mT],-1)*.3,-1),(2,3,5,11),i8(2,3,19,11),ru(2,3,19,1),(2,3,5,11))
fn("att_dequant_gqa_decode","reduction",lambda q,k,s:(q.view(2,3,4,1,10)*(k.float()*s[...,None]).unsqueeze(2)).sum(-1).mul(10**-.5).softmax(-1),(2,12,10),i8(2,3,22,10),ru(2,3,22))
fn("att_dequant_embed","pointwise",lambda i,t,s:(t[i].float()*s[i].unsqueeze(-1)+.01).tanh(),ri(60,3,21),i8(60,26),ru(60))
fn("att_fakequant_pertoken_linear","product",lambda l,x:l(x+((x*(s:=127/x.detach().abs().amax(-1,keepdim=True).clamp(min=1e-5))).round().clamp(-128,127)/s-x).detach()),(3,15,28),layers=lambda:(nn.Linear(28,37),),train=True)
fn("att_hadamard_quant","product",lambda x:(lambda h:((h/(h.abs().amax(-1,keepdim=True)/7+1e-6)).round().clamp(-8,7)))((x.view(3,14,2,5,5).sum(-1,keepdim=True)+x.view(3,14,2,5,5)).flatten(2)*5**-.5),(3,14,50))
fn("att_stochround_given","pointwise",lambda x,u,s:((x/s).floor()+((x/s)-(x/s).floor()>u).float()).clamp(-127,127)*s,(19,45),ru(19,45),lambda:torch.rand(19,1)+.05)
fn("att_outlier_split","product",lambda x,w,m:(x*m)@w.t()+(((x*~m)*20).round()/20)@w.t().mul(1.0+1/128),(3,13,28),(37,28),rb(.1,28))
fn("att_mxfp_pow2_scale","reduction",lambda x:(lambda y,s:((y/s).clamp(-6,6)*2).round()/2*s)(x.view(17,6,8),torch.exp2(torch.floor(torch.log2(x.view(17,6,8).abs().amax(-1,keepdim=True)+1e-9))-2)),(17,48))
fn("att_retention_chunk_cross","product",lambda q,S,o,g:o+(q@S)*torch.exp2(-F.softplus(g)[:,None,None]*torch.arange(1,16)[:,None]),(2,3,15,8),(2,3,8,11),(2,3,15,11),(3,),train=True)
fn("att_lightning_decay_mask","pointwise",lambda s,g:torch.where((torch.arange(19)[:,None]-torch.arange(19))>=0,torch.exp(-g.abs()[:,None,None]*(torch.arange(19)[:,None]-torch.arange(19)).clamp(min=0)),0)*s,(2,5,19,19),(5,),train=True)
fn("att_mega_ema_step","pointwise",lambda a,d,x,h:(lambda p,q:(p*x[...,None]+(1-p*q)*h).mul(.5).sum(-1)+F.silu(x))(a.sigmoid(),d.sigmoid()),(3,22),(3,22,6),layers=lambda:(P(22,6),P(22,6)),train=True)
fn("att_s4d_kernel","reduction",lambda a,th,c,dt:(torch.exp(-a.exp()[...,None]*dt.exp()[:,None,None]*torch.arange(29))*torch.cos(th[...,None]*torch.arange(29))*c[...,None]).sum(1)*2,(14,6),(14,6),(14,6),(14,),train=True)
fn("att_gateloop_pair","scan",lambda a,v,g:(lambda A:F.silu(g)*A.exp()*(v*(-A).clamp(max=15).exp()).cumsum(1))(F.logsigmoid(a).cumsum(1)),(2,17,22),(2,17,22),(2,17,22),train=True)
fn("att_qrnn_fo_gates","pointwise",lambda w,x,h:(lambda z,f,o:(o.sigmoid()*(f.sigmoid()*h+(1-f.sigmoid())*z.tanh()),f.sigmoid()))(*(x@w[0]+F.pad(x,(0,0,1,-1))@w[1]).chunk(3,-1)),(2,18,15),(2,18,17),layers=lambda:(P(2,15,51),),train=True)
fn("att_sru_highway","pointwise",lambda v,b,u,c,x:(lambda f,r:(r*(f*c+(1-f)*u[0]).tanh()+(1-r)*x*1.73,f*c+(1-f)*u[0]))(torch.sigmoid(u[1]+v[0]*c+b[0]),torch.sigmoid(u[2]+v[1]*c+b[1])),(3,13,27),(13,27),(13,27),layers=lambda:(P(2,27),P(2,27)),train=True)
