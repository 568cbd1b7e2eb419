"""Merges a LoRA adapter into the model that it was trained on. Only `weights` imports torch, and
only when a merge begins."""
