"""The compiler behind torch.compile(model, backend="cudal1")."""
