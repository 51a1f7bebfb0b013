"""Which samples does a rank see, and where do they come from?"""

from covey.data.digits import digits
from covey.data.fashion import fashion_mnist

__all__ = ["digits", "fashion_mnist"]
