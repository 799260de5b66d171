"""The one exception that stands for a user's mistake."""


class InputError(ValueError):
  """What the user gave cannot be used.

  The message says what was expected, what was found and what to do. Commands print
  it without a traceback and exit with status 2.
  """
