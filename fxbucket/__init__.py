"""fxbucket: one trace, many static compilations, one look-up a call.

``fxbucket.compile`` for users, ``fxbucket.backend`` for those who live in torch.compile, ``fxbucket.capture`` and
``fxbucket.passes`` for those who write passes, ``fxbucket.visualize`` for all who want to look.
"""

import logging

from fxbucket.backend import backend as backend
from fxbucket.capture import capture as capture
from fxbucket.compiled import compile as compile
from fxbucket.passes.buckets import Range as Range
from fxbucket.passes.captured import Axis as Axis
from fxbucket.passes.errors import FxbucketError as FxbucketError
from fxbucket.passes.errors import FxbucketWarning as FxbucketWarning

__all__ = ["Axis", "FxbucketError", "FxbucketWarning", "Range", "backend", "capture", "compile"]
__version__ = "0.1.0"

# A library is silent until the program that uses it says where its log goes.
logging.getLogger("fxbucket").addHandler(logging.NullHandler())
