"""What the errors mean that clouds state: by the words of their codes (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fairlead.cloud.calls import Throttled
from fairlead.cloud.provider import CloudError, OutOfCapacity, RefusedByProvider

_MESSAGE_MAX = 300
_HTTP_REFUSED = (400, 401, 403, 404)


class NotThere(RefusedByProvider):
    """What the call names does not exist."""


@dataclass(frozen=True, slots=True)
class Stated:
    """One error as a cloud states it: in an answer, an operation or a machine."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Words:
    """How a cloud names its errors: parts of their codes, in capitals, by what they mean.

    Of several errors the first group counts that has one of them. `in_text` are words of the
    message that say so where the code is `vague`.
    """

    cloud: str
    throttled: tuple[str, ...]
    no_capacity: tuple[str, ...]
    refused: tuple[str, ...]
    later: tuple[str, ...] = ()
    #: The words are whole codes, not parts.
    is_whole: bool = False
    vague: str = ""
    no_capacity_in_text: tuple[str, ...] = ()
    later_in_text: tuple[str, ...] = ()

    def text(self, stated: Stated) -> str:
        """Return an error as it is shown."""
        return f"{self.cloud}: {stated.code}: {stated.message}"[:_MESSAGE_MAX]

    def error_of(self, stated: Sequence[Stated]) -> CloudError:
        """Return what errors mean together; a plain CloudError: it may pass by itself."""
        kinds: tuple[tuple[tuple[str, ...], tuple[str, ...], type[CloudError]], ...] = (
            (self.throttled, (), Throttled),
            (self.no_capacity, self.no_capacity_in_text, OutOfCapacity),
            (self.later, self.later_in_text, CloudError),
            (self.refused, (), RefusedByProvider),
        )
        for codes, texts, kind in kinds:
            for each in stated:
                if self._means(each, codes, texts):
                    return kind(self.text(each))
        return CloudError(
            self.text(stated[0]) if stated else f"{self.cloud}: it failed without a reason"
        )

    def error_of_answer(self, stated: Sequence[Stated], http: int) -> CloudError:
        """Return what the errors of an answer with this HTTP status mean."""
        found = self.error_of(stated)
        is_later = any(self._means(each, self.later, self.later_in_text) for each in stated)
        if http in _HTTP_REFUSED and type(found) is CloudError and not is_later:
            return RefusedByProvider(str(found))
        return found

    def _means(self, stated: Stated, codes: tuple[str, ...], texts: tuple[str, ...]) -> bool:
        code, text = stated.code.upper(), stated.message.upper()
        if self.vague and self.vague in code and any(part in text for part in texts):
            return True
        return code in codes if self.is_whole else any(part in code for part in codes)
