"""What we know about OpenAI-compatible endpoints: the formats of requests, answers and streams,
what they refuse, their rate limits, outages and prices.

Nothing here is a server. The servers that use it are in `serving` and `responses_api_models`.
"""
