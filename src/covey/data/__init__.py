"""Which samples does a rank see, and where do they come from?"""

from covey.data.digits import digits
from covey.data.fashion import fashion_mnist
from covey.data.storage.packing import pack
from covey.data.storage.stored import remote

__all__ = ["digits", "fashion_mnist", "pack", "remote"]
