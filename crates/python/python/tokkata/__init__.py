"""Run language models from a file.

>>> from tokkata import Model
>>> model = Model("model.gguf")
>>> for piece in model.generate("Once upon a time", max_tokens=40):
...     print(piece.text, end="")
>>> print(model.chat([{"role": "user", "content": "Hello"}]))

A :class:`Model` serves any number of threads and tasks at once; requests that run together share each step. Waiting
never holds the interpreter lock. Numbers come as :class:`Floats`, which NumPy reads where they lie
(``numpy.asarray(floats)``); NumPy itself is imported only where an array is asked for.
"""

from tokkata import _library

_library.choose()

from tokkata._model import (  # noqa: E402
    Completion,
    Generation,
    Message,
    Model,
    Piece,
    Stats,
    convert,
    quantize,
    sample,
)
from tokkata._speech import Segment, Transcription, Word  # noqa: E402
from tokkata._tokkata import (  # noqa: E402
    Floats,
    Grammar,
    Matcher,
    Session,
    TokkataError,
    __version__,
    devices,
)

__all__ = [
    "Completion",
    "Floats",
    "Generation",
    "Grammar",
    "Matcher",
    "Message",
    "Model",
    "Piece",
    "Segment",
    "Session",
    "Stats",
    "TokkataError",
    "Transcription",
    "Word",
    "__version__",
    "convert",
    "devices",
    "quantize",
    "sample",
]
