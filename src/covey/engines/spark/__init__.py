"""How do roles live in a Spark job? A site is a task of a barrier stage, and its rows can be its partition.

`--engine spark` uses the Spark of this program if it has one, else starts a local one for the run (or, with
`spark(master="spark://HOST:7077")`, connects to a cluster). What was there before stays when the run is over.
"""

from covey.engines.spark.sites import SparkPlaces, places

__all__ = ["SparkPlaces", "places"]
