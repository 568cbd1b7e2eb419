"""The tiny model's tokenizer: ChatML, digits one by one, a frequent piece of text one token each.

Any text can be written in it: what is not a frequent piece falls apart into bytes.
"""

import random
import re

from conversations import CHAT_TEMPLATE, conversation, parts
from problems import SKILLS, draw
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

VOCABULARY = 576
"""256 bytes, the tags below, and merges for all the words that the training texts have."""

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TAGS = ["<tools>", "</tools>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]

PIECES = (
    r"\d"
    r'|[{\[, ]*"\w+"(?:: )?[\]}]*'  # JSON: a key or a word with what stands around it
    r"|[ \n]?[A-Z][).] (?=\d)"  # the letter of a choice
    r"|[A-Z]:(?=\d)"
    r"|[,:] (?=[\dA-Zm])|[.] (?=Answer|\\)"
    r"|[ ]?[+=-][ ]?"
    r"|[ ]?\\\w+\{\}?"
    r"|[ ]?[^\W\d_]+(?:\n|\(|[ ](?=\d))?"
    r"|[ ]?[^\s\w]+"
    r"|\s"
    r"|_"
)
"""No token reaches beyond one of these. They are long, since most of a prompt is always the same
and training costs by the token."""

NUM_SAMPLES = 1000
"""Conversations per skill that the merges are learnt from."""


def build_tokenizer(max_length: int) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(TAGS),
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(), trainer)
    tokenizer.add_tokens([AddedToken(tag, normalized=False) for tag in TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )


def _texts() -> list[str]:
    rng = random.Random(0)
    between = re.compile("|".join(map(re.escape, SPECIAL + TAGS)))
    found = []
    for skill in SKILLS:
        for _ in range(NUM_SAMPLES):
            problem = draw(rng, skill, held_out=False)
            whole = "".join(text for text, _ in parts(*conversation(rng, problem)))
            found += between.split(whole)
    return found
