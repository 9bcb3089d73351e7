"""Generators: prompts in, replies out. The bundled model, transformers, vLLM, or a server."""
