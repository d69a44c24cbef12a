"""What training is made of, and what the test set holds."""

import basics
import reading
from rewriting import rewrite
from tasks import as_json, compare, continuation, count_words, in_json, items, letter, letters, other, reverse, spell, story, story_any, story_one, summarise, tool

# Weights of the tasks in training.
MIX = [
    (story, 15), (story_one, 3), (story_any, 1.5), (continuation, 6), (summarise, 6), (letters, 7), (letter, 8), (count_words, 4), (items, 4),
    (spell, 7), (reverse, 8), (compare, 8), (as_json, 6), (in_json, 3), (tool, 9), (other, 22), (rewrite, 10), *basics.MIX, *reading.MIX,
]
TASKS, SHARES = zip(*MIX)

# What the test set holds.
TESTS = [(story, 40), (continuation, 16), (summarise, 16), (letters, 14), (letter, 14), (count_words, 6), (items, 6), (spell, 20), (reverse, 12),
         (compare, 26), (as_json, 10), (tool, 10), (other, 10), (rewrite, 24)]
