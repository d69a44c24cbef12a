"""Which library `tokkata._tokkata` is: that of the package tokkata-cuda where it is installed, else this package's own."""

import importlib
import sys


def choose() -> None:
    """Puts the other package's library in the place of this one's."""
    try:
        library = importlib.import_module("tokkata_cuda._tokkata")
    except ModuleNotFoundError:
        return
    from importlib.metadata import version

    own, other = version("tokkata"), library.__version__
    if own != other:
        raise ImportError(
            f"tokkata is {own} and tokkata-cuda {other}; install the same version of both: pip install tokkata[cuda]=={own}"
        )
    sys.modules["tokkata._tokkata"] = library
