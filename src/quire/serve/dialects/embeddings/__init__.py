"""Embeddings, scores and classes: the endpoints of OpenAI, vLLM, Cohere, Jina, TEI and llama.cpp."""
