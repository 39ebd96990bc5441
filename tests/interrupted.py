"""What a program's own handler of a signal raises."""


class Interrupted(BaseException):
    """No error, as KeyboardInterrupt is none."""
