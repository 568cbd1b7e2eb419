"""Requests that a provider answers in batches, at a lower price: how they gather, how a batch is
journalled and followed, and the interfaces of the providers. It knows neither rows nor rollouts.
"""
