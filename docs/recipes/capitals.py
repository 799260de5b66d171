"""Writes the sentences of standard input in lower case, tagged with their capitals."""

import json
import re
import sys


def tag(word: str) -> str:
  letters = "".join(filter(str.isalpha, word))
  if letters == letters.lower():
    return "lower"
  if letters == letters.capitalize():
    return "Capitalised"
  return "UPPER" if letters.isupper() else "Mixed"


for line in sys.stdin:
  for sentence in re.split(r"(?<=[.?!]) ", line):
    words = [word for word in sentence.split() if any(map(str.isalnum, word))]
    if len(words) > 3:
      tokens = [word.lower() for word in words]
      print(json.dumps({"tokens": tokens, "tags": list(map(tag, words))}))
