"""What a file of modules begins with."""
import math, torch
from torch import nn, Tensor
from torch.nn import functional as F
M=[]
class Of(nn.Module):
    """A module out of a function: fn(*items, *inputs); items are layers, nn.Parameters or plain values."""
    def __init__(self, fn, *items):
        super().__init__(); self.fn=fn; self.items=items
        self.layers=nn.ModuleList([l for l in items if isinstance(l,nn.Module)])
        self.ps=nn.ParameterList([l for l in items if isinstance(l,nn.Parameter)])
    def forward(self,*x): return self.fn(*self.items,*x)
def P(*s,scale=0.2): return nn.Parameter(torch.randn(*s)*scale)
R=torch.randn
def add(name,label,make,train=False):
    """make() -> (nn.Module, tuple of input tensors). label: product, conv, norm, pool, scan, reduction, loss, block, pointwise"""
    M.append((name,label,train,make))
def fn(name,label,f,*shapes,train=False,layers=lambda:()):
    """f(*layers, *inputs). shapes: tuples (float32 normal), or functions that make a tensor (ri, rb, ru)."""
    def make():
        xs=tuple(s() if callable(s) else R(*s) for s in shapes)
        if train: xs=tuple(x.requires_grad_() if x.is_floating_point() else x for x in xs)
        return Of(f,*layers()),xs
    add(name,label,make,train)
ri=lambda hi,*s: (lambda: torch.randint(0,hi,s))      # integers below hi
rb=lambda p,*s: (lambda: torch.rand(*s)<p)            # bools
ru=lambda *s: (lambda: torch.rand(*s))                # uniform in 0..1
rh=lambda *s: (lambda: torch.randn(*s).bfloat16())    # bf16
rf=lambda *s: (lambda: torch.randn(*s).half())        # f16
