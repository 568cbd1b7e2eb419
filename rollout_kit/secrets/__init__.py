"""Which values are secret, and how to mask them.

Secret are: values of keys that name a secret, values of headers, user and query values of URLs, and
what `env.yaml` holds besides names of models, numbers, paths and plain URLs. They are masked by
value in every text and in every spelling, because they may have been interpolated into a URL or
quoted in an error.
"""

from .finding import find_used, is_secret_key, private_values, secret_values
from .masking import echoes, mask, mask_echo
from .spellings import MASK

__all__ = [
    "MASK",
    "echoes",
    "find_used",
    "is_secret_key",
    "mask",
    "mask_echo",
    "private_values",
    "secret_values",
]
