"""Every error that the calculator raises on purpose.

::

    CalculatorError
    ├── InputError                 exit code 2: something the person typed
    │   ├── PlanError              a field of the plan, or a combination of fields
    │   ├── UnknownGpuError
    │   ├── ModelIdError           not a model id, URL or path
    │   ├── NotTrainableError      weights that training cannot start from
    │   └── TooLargeError          pasted or uploaded text over the limit
    ├── ShapeError                 exit code 2: a config.json that is not read
    │   ├── NotAConfigError        not JSON, not an object, too deep
    │   ├── UnknownFamilyError     a model_type that is not known and not understood key by key
    │   ├── MissingKeyError
    │   ├── BadValueError
    │   └── NotALanguageModelError
    └── HubError                   exit code 3: the hub could not answer
        ├── ModelNotFoundError
        ├── GatedModelError
        ├── NotAuthorisedError
        ├── RateLimitedError
        ├── HubOfflineError
        ├── HubTimeoutError
        ├── HubAnswerError         truncated, malformed or over-long answer
        └── NoConfigError          the repository has no config.json

Each carries the field at fault and two texts: what is wrong and what to do next.
"""

from typing import ClassVar

from calculator.text import Text, Value, text


class CalculatorError(Exception):
    """Base of all. ``message`` says what is wrong, ``remedy`` what to do; both are catalogue texts.

    ``field`` is the plan's, the config's or the command line's name of what is at fault, or "" if there is none.
    The catalogue holds ``<key>`` and ``<key>.remedy``, which may use the same named values.
    """

    exit_code: ClassVar[int] = 2

    def __init__(self, key: str, *, field: str = "", **values: Value | Text) -> None:
        self.key = key
        self.field = field
        if field:
            values.setdefault("field", field)
        self.message = text(key, **values)
        self.remedy = text(f"{key}.remedy", **values)
        super().__init__(f"{key}: {field} {values}")


class InputError(CalculatorError):
    """Something the person typed."""


class PlanError(InputError):
    """A plan field has an impossible value, or two fields do not go together."""


class UnknownGpuError(InputError):
    """No card of that key or name in the catalogue."""


class ModelIdError(InputError):
    """The text is neither a model id nor a hub address nor a readable path."""


class NotTrainableError(InputError):
    """Training cannot start from these weights."""


class TooLargeError(InputError):
    """Pasted or uploaded text exceeds the limit."""


class ShapeError(CalculatorError):
    """A config.json that cannot be turned into a model shape."""


class NotAConfigError(ShapeError):
    """Not a JSON object, or nested beyond reason."""


class UnknownFamilyError(ShapeError):
    """The family is not known and the generic reader does not understand every key that matters."""


class MissingKeyError(ShapeError):
    """A key without which the shape is undefined is absent."""


class BadValueError(ShapeError):
    """A key holds a value of the wrong type, sign or size."""


class NotALanguageModelError(ShapeError):
    """The configuration describes something without a token vocabulary, such as an image model."""


class HubError(CalculatorError):
    """The hub could not answer."""

    exit_code = 3


class ModelNotFoundError(HubError):
    """No repository or revision of that name, or it is private and no token was given."""


class GatedModelError(HubError):
    """The repository asks its visitors to accept terms first."""


class NotAuthorisedError(HubError):
    """The token is wrong or lacks the right to read."""


class RateLimitedError(HubError):
    """The hub asks to wait."""


class HubOfflineError(HubError):
    """No connection to the hub."""


class HubTimeoutError(HubError):
    """The hub did not answer in time."""


class HubAnswerError(HubError):
    """The answer was cut short, malformed or larger than allowed."""


class NoConfigError(HubError):
    """The repository holds no config.json."""
