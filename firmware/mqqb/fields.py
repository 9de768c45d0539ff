"""The fields of headers by their names, for CPython: `user.message_id` is user.fields[core.USER_MESSAGE_ID].

A board has no memory for properties: what boards get of a module is without them.
"""

from mqqb import compose

TYPE_CHECKING = False
if TYPE_CHECKING:
    from array import array

    class Fields:
        """What has words: a header."""

        fields: "array[int]"

    class Word:
        """What a type checker is told of a property that stands for one word."""

        def __get__(self, instance: object, owner: object) -> int: ...

        def __set__(self, instance: object, value: int) -> None: ...


def word(place: int) -> "Word":
    """A property that stands for .fields[place]."""

    def read(self: "Fields") -> int:
        return self.fields[place]

    def write(self: "Fields", value: int) -> None:
        self.fields[place] = compose.check_u32(value)

    return property(read, write)  # type: ignore[return-value]
