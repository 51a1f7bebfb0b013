"""Which samples does a rank see, and where do they come from?"""

from covey.data.digits import digits
from covey.data.fashion import fashion_mnist
from covey.data.feed import Feed
from covey.data.partitions import Partitions, RowInfo
from covey.data.shards import Shards

__all__ = ["digits", "fashion_mnist", "Shards", "Partitions", "RowInfo", "Feed"]
