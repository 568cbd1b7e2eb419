"""IFBench's kinds about words, sentences and their numbers, as in the published checks but for
what the README names."""

import re
import string
from collections import Counter
from itertools import pairwise

import counting
from counting import MARKS, remove_marks
from kinds import Count, Place, Text, kind
from syllables import count_syllables

CONJUNCTIONS = {"and", "but", "for", "nor", "or", "so", "yet"}

CONSONANTS = re.compile("[bcdfghj-np-tv-z]{2}")

JAPANESE = re.compile("[\u3040-\u30ff\u4e00-\u9fff]")

LETTERS = string.ascii_lowercase

PRIMES = {number for number in range(2, 100) if all(number % each for each in range(2, number))}

PRONOUNS = """
i me my mine myself we us our ours ourselves you your yours yourself yourselves he him his himself
she her hers herself it its itself they them their theirs themselves
"""

NAMES = """
Emma Liam Sophia Jackson Olivia Noah Ava Lucas Isabella Mason Mia Ethan Charlotte Alexander Amelia
Benjamin Harper Leo Zoe Daniel Chloe Samuel Lily Matthew Grace Owen Abigail Gabriel Ella Jacob
Scarlett Nathan Victoria Elijah Layla Nicholas Audrey David Hannah Christopher Penelope Thomas Nora
Andrew Aria Joseph Claire Ryan Stella Jonathan
"""

STOP_WORDS = """
a about above after again against ain all am an and any are aren as at be because been before being
below between both but by can couldn d did didn do does doesn doing don down during each few for
from further had hadn has hasn have haven having he her here hers herself him himself his how i if
in into is isn it its itself just ll m ma me mightn more most mustn my myself needn no nor not now o
of off on once only or other our ours ourselves out over own re s same shan she should shouldn so
some such t than that the their theirs them themselves then there these they this those through to
too under until up ve very was wasn we were weren what when where which while who whom why will with
won wouldn y you your yours yourself yourselves
"""
"""nltk's English list, without those that have an apostrophe."""


@kind("count:word_count_range")
def word_count_range(text: str, min_words: Count, max_words: Count) -> bool:
    return min_words <= counting.count_words(text) <= max_words


@kind("count:unique_word_count")
def unique_word_count(text: str, N: Count) -> bool:
    return len({word.strip(MARKS) for word in text.lower().split()}) >= N


@kind("count:conjunctions")
def conjunctions(text: str, small_n: Count) -> bool:
    found = {word for word in text.split() if word.strip(MARKS).lower() in CONJUNCTIONS}
    return len(found) >= small_n


@kind("count:person_names")
def person_names(text: str, N: Count) -> bool:
    return sum(re.search(rf"\b{name}\b", text) is not None for name in NAMES.split()) >= N


@kind("count:numbers")
def numbers(text: str, N: Count) -> bool:
    return len(re.findall(r"\d+", remove_marks(text))) == N


@kind("count:punctuation")
def punctuation(text: str) -> bool:
    both = next((each for each in ("?!", "!?") if each in text), "")
    rest = text.replace(both, "", 1) if both else text
    return bool(both or "‽" in text) and all(mark in rest for mark in ".,!?;:")


@kind("count:words_japanese")
def words_japanese(text: str, N: Place) -> bool:
    words = (word.strip(MARKS) for word in text.split()[N - 1 :: N])
    return all(JAPANESE.search(word) for word in words if word and not word.isdigit())


@kind("count:pronouns")
def pronouns(text: str, N: Count) -> bool:
    words = remove_marks(text.replace("/", " ").lower()).split()
    known = set(PRONOUNS.split())
    return sum(word in known for word in words) >= N


@kind("count:keywords_multiple")
def keywords_multiple(
    text: str, keyword1: Text, keyword2: Text, keyword3: Text, keyword4: Text, keyword5: Text
) -> bool:
    words = (keyword1, keyword2, keyword3, keyword4, keyword5)
    return all(
        len(re.findall(rf"\b{re.escape(word.strip())}\b", text, re.IGNORECASE)) == number
        for word, number in zip(words, (1, 2, 3, 5, 7), strict=True)
    )


@kind("ratio:stop_words")
def stop_words(text: str, percentage: Count) -> bool:
    words = re.findall(r"\w+", text)
    known = set(STOP_WORDS.split())
    found = sum(word.lower() in known for word in words)
    return bool(words) and found / len(words) * 100 <= percentage


@kind("ratio:sentence_type")
def sentence_type(text: str) -> bool:
    stated, asked, _ = _count_ends(text)
    return stated == 2 * asked


@kind("ratio:sentence_balance")
def sentence_balance(text: str) -> bool:
    return len(set(_count_ends(text))) == 1


@kind("ratio:sentence_words")
def sentence_words(text: str) -> bool:
    sentences = counting.split_sentences(text)
    words = remove_marks(" ".join(sentences).lower()).split()
    is_even = len(sentences) == 3 and len(set(map(len, sentences))) == 1
    return is_even and bool(words) and len(words) == len(set(words))


@kind("ratio:overlap", by_nltk=True)
def overlap(text: str, reference_text: Text, percentage: Count) -> bool:
    found, wanted = _find_trigrams(text), _find_trigrams(reference_text)
    share = len(found & wanted) / len(found) * 100
    return percentage - 2 <= share <= percentage + 2


@kind("words:alphabet")
def alphabet(text: str) -> bool:
    firsts = [word.lower()[0] for word in remove_marks(text).split()]
    start = LETTERS.index(firsts[0])
    return all(first == LETTERS[(start + place) % 26] for place, first in enumerate(firsts))


@kind("words:vowel")
def vowel(text: str) -> bool:
    return "\n" not in text.strip() and len(set(text.lower()) & set("aeiou")) <= 3


@kind("words:consonants")
def consonants(text: str) -> bool:
    return all(CONSONANTS.search(word) for word in text.lower().split())


@kind("words:palindrome")
def palindromes(text: str) -> bool:
    words = remove_marks(text).lower().split()
    return sum(len(word) >= 5 and word == word[::-1] for word in words) >= 10


@kind("words:prime_lengths")
def prime_lengths(text: str) -> bool:
    return all(len(word) in PRIMES for word in remove_marks(text).split())


@kind("words:repeats")
def repeats(text: str, small_n: Count) -> bool:
    found = Counter(remove_marks(text.lower()).split())
    return all(number <= small_n for number in found.values())


@kind("words:odd_even_syllables")
def odd_even_syllables(text: str) -> bool:
    parities = [count_syllables(word) % 2 for word in remove_marks(text).lower().split()]
    return all(one != other for one, other in pairwise(parities))


@kind("words:last_first")
def last_first(text: str) -> bool:
    return all(
        one.rstrip(MARKS).split()[-1].lower() == other.lstrip(MARKS).split()[0].lower()
        for one, other in pairwise(counting.split_sentences(text))
    )


@kind("words:paragraph_last_first")
def paragraph_last_first(text: str) -> bool:
    paragraphs = [line.strip().lower().strip(MARKS).split() for line in text.split("\n")]
    return all(words[0] == words[-1] for words in paragraphs if words)


@kind("words:no_consecutive")
def no_consecutive(text: str) -> bool:
    words = remove_marks(text.lower()).split()
    return all(one[0] != other[0] for one, other in pairwise(words))


@kind("words:start_verb", by_nltk=True)
def start_verb(text: str) -> bool:
    import treebank
    import verbs

    return verbs.is_verb(treebank.tokenize(text.split(maxsplit=1)[0])[0])


@kind("words:keywords_specific_position", by_nltk=True)
def keywords_specific_position(text: str, keyword: Text, n: Place, m: Place) -> bool:
    return _tokenize(counting.split_sentences(text)[n - 1])[m - 1] == keyword.strip()


@kind("words:words_position", by_nltk=True)
def words_position(text: str, keyword: Text) -> bool:
    words = _tokenize(text)
    return words[1].lower() == words[-2].lower() == keyword.strip().lower()


@kind("sentence:alliteration_increment")
def alliteration_increment(text: str) -> bool:
    found = [_count_alliterative(each) for each in counting.split_sentences(text)]
    return all(one < other for one, other in pairwise(found))


@kind("sentence:keyword")
def sentence_keyword(text: str, word: Text, N: Place) -> bool:
    return word.lower() in counting.split_sentences(text)[N - 1].lower()


@kind("sentence:increment")
def sentence_increment(text: str, small_n: Count) -> bool:
    sentences = counting.split_sentences(text)
    lengths = [len(remove_marks(each).split()) for each in sentences]
    return all(other == one + small_n for one, other in pairwise(lengths))


def _count_ends(text: str) -> list[int]:
    sentences = counting.split_sentences(text)
    return [sum(each.endswith(mark) for each in sentences) for mark in ".?!"]


def _count_alliterative(sentence: str) -> int:
    """Count words next to one with the same first letter."""
    words = filter(None, (word.lstrip(MARKS) for word in sentence.lower().split()))
    firsts = [word[0] for word in words]
    sames = [one == other for one, other in pairwise(firsts)]
    return sum(sames) + sum(one and not before for before, one in pairwise([False, *sames]))


def _find_trigrams(text: str) -> set[tuple[str, ...]]:
    import treebank

    words = treebank.tokenize(text)
    return set(zip(words, words[1:], words[2:], strict=False))


def _tokenize(text: str) -> list[str]:
    import treebank

    return [word for word in treebank.tokenize(text) if any(map(str.isalnum, word))]
