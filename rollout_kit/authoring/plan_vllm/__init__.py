"""Which vLLM settings fit a model on given GPUs: memory of weights and cache, and the layout."""
