"""What did the surveys call it? Named systems as compositions of what is there, each with the row its survey prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SurveyRow:
    """A line of the surveys' tables, as printed."""

    parallelism: str
    optimization: str
    scheduling: str
    exchange: str
    topology: str


@dataclass(frozen=True, slots=True)
class System:
    """A name of the surveys: the SPEC it is made of, its row if one is printed, and what is still missing of it."""

    spec: str
    row: SurveyRow | None
    paper: str
    missing: str = ""


@dataclass(frozen=True, slots=True)
class Category:
    """A line of Mayer & Jacobsen 2020, Table 1, whose `architecture` says whether there is a parameter server."""

    synchronization: str
    architecture: str
    concept: str


EITHER = "bounded (in practice synchronous or asynchronous)"
STAGES = "its early ends of epochs with stages: project_adam(epoch=1) with mesh(...), whose pushes are plain gradients"

NEXT_LAYER = "the parameters of the next layer, which it brings together while this one computes"

SYSTEMS: Mapping[str, System] = {
    # Langer et al. 2020, Table 1; systems that are strategies of their own have their row in ROWS
    "distbelief": System(
        "downpour",
        SurveyRow("model + data", "central", "asynchronous", "ad hoc", "distributed servers"),
        "Dean et al. 2012",
    ),
    "mxnet": System(
        "bsp over colocated",
        SurveyRow(
            "model + data", "central", EITHER, "scatter-reduce / ad hoc", "distributed servers, usually one per worker"
        ),
        "Chen et al. 2015",
    ),
    "parameter_server": System(
        "bounded_delay",
        SurveyRow("model + data", "central", "bounded", "reduce / ad hoc", "distributed servers"),
        "Li et al. 2014",
        "copies of ranges (chain replication), and a clock for each range, come with fault tolerance; tasks depend on "
        "those before them only, and the delay stays; its filters are downpour's",
    ),
    "project_adam": System(
        "outer_products(epoch=0.75) over servers(count=2)",
        SurveyRow("model + data", "central", "asynchronous", "ad hoc", "distributed servers"),
        "Chilimbi et al. 2014",
        STAGES,
    ),
    "pytorch": System(
        "allreduce",
        SurveyRow("model + data", "central", "synchronous", "all-reduce", "single or replicated server"),
        "Li et al. 2020",
        "buckets that leave while backward runs, which are pytorch(bucket=25MB)",
    ),
    "tensorflow": System(
        "quorum(count=gradients) over colocated",
        SurveyRow(
            "model + data",
            "central",
            EITHER,
            "scatter / all-reduce / ad hoc",
            "distributed servers, usually one per worker",
        ),
        "Abadi et al. 2016",
    ),
    # Mayer & Jacobsen 2020, Tables 2 and 3
    "dynssp": System(
        "ssp(damping=dynamic)",
        SurveyRow("data", "central", "bounded", "ad hoc", "parameter server"),
        "Jiang et al. 2017",
    ),
    "geeps": System(
        "ssp(bound=0) over colocated",
        SurveyRow("data", "central", "bounded", "ad hoc", "sharded servers on GPUs"),
        "Cui et al. 2016",
        "this is its protocol only, not its management of GPU memory: parameters lie where torch puts them; nothing is "
        "staged, gathered by rows that a first pass found, or moved to the host's memory when a budget is spent",
    ),
    "chainermn": System(
        "allreduce", SurveyRow("data", "central", "synchronous", "all-reduce", "replicated"), "Akiba et al. 2017"
    ),
    "cntk": System(
        "bmuf",
        SurveyRow("data", "decentral", "synchronous at block ends", "all-reduce", "peers"),
        "Seide & Agarwal 2016; Chen & Huo 2016",
        "1-bit SGD, which is sliced + onebit",
    ),
    "dl4j": System(
        "sparknet",
        SurveyRow("data", "decentral", "synchronous", "reduce", "dedicated master"),
        "Deeplearning4j",
        "threshold-coded gradient sharing, which is asynchronous + strom",
    ),
    "horovod": System(
        "allreduce",
        SurveyRow("data", "central", "synchronous", "ring all-reduce", "replicated"),
        "Sergeev & Del Balso 2018",
    ),
    "singa": System(
        "asynchronous",
        SurveyRow("model + data", "central", "synchronous or asynchronous", "ad hoc", "worker groups x server groups"),
        "Ooi et al. 2015",
    ),
    "caffe2": System(
        "allreduce", SurveyRow("data", "central", "synchronous", "all-reduce", "replicated"), "Jia et al. 2017"
    ),
    # Hasan & Zeebaree 2024 name them in their text
    "nebula": System(
        "diloco(local=2, period=32) + topk(density=0.07)",
        None,
        "Xiang et al. 2022",
        "its choice of adapters, the few parameters that are trained: freeze the others in the model",
    ),
    "varuna": System(
        "allreduce with mesh(stage=2, microbatches=4)",
        None,
        "Athlur et al. 2022",
        "on real processes its own choice of stages and replicas when machines come and go, which covey simulate makes",
    ),
    "zero1": System("allreduce with mesh(zero=1)", None, "Rajbhandari et al. 2020"),
    "zero2": System("allreduce with mesh(zero=2)", None, "Rajbhandari et al. 2020"),
    "zero3": System("allreduce with mesh(zero=3)", None, "Rajbhandari et al. 2020"),
    "fsdp": System("allreduce with mesh(zero=3)", None, "Zhao et al. 2023", NEXT_LAYER),
    "switch": System(
        "allreduce with mesh(expert=2)",
        None,
        "Fedus et al. 2022",
        "experts whose own weights are divided (its expert and model parallelism together)",
    ),
    "cots_hpc": System(
        "allreduce with mesh(replica=1, split=best)",
        SurveyRow("model", "central", "synchronous", "none", "distributed array"),
        "Coates et al. 2013",
        "blocks in two dimensions: images are divided by rows",
    ),
    "mics": System(
        "allreduce with mesh(replica=2, zero=3)",
        None,
        "Zhang et al. 2022",
        "its gathering in two steps where a group spans machines",
    ),
}

ROWS: Mapping[str, SurveyRow] = {
    "bigdl": SurveyRow(
        "data", "central", "synchronous", "scatter-reduce", "distributed servers, always one per worker"
    ),
    "caffeonspark": SurveyRow(
        "data", "central", "synchronous", "scatter-reduce", "distributed servers, always one per worker"
    ),
    "dpsgd": SurveyRow("data", "decentral", "synchronous", "2:1 reduce", "closed ring"),
    "easgd": SurveyRow("data", "decentral", "asynchronous", "ad hoc", "single master"),
    "firecaffe": SurveyRow("data", "central", "synchronous", "binomial tree", "single parameter server"),
    "gosgd": SurveyRow("data", "decentral", "soft-bounded", "ad hoc", "peer-to-peer mesh"),
    "mpca": SurveyRow("data", "decentral", "soft-bounded", "binomial tree", "dedicated master"),
    "petuum": SurveyRow("model + data", "central", "bounded", "ad hoc, eager scatter", "distributed servers"),
    "sparknet": SurveyRow("data", "decentral", "synchronous", "reduce", "dedicated master"),
    "tree_easgd": SurveyRow("data", "decentral", "bounded", "ad hoc", "tree"),
}
"""The printed rows of systems that are strategies of their own."""

LACKING: Mapping[str, str] = {
    "petuum": "its scheduler of variables (STRADS); its managed communication is bosen",
}
"""What is still missing of those."""

ANY = "synchronous, bounded asynchronous or asynchronous"

CATEGORIES: Mapping[str, Category] = {
    "hogwild": Category("asynchronous", "decentralized", "lock-free updates"),
    "downpour": Category("asynchronous", "centralized", "parameter sharding, asynchronous SGD"),
    "ssp": Category("bounded asynchronous", "centralized", "introduces stale synchronous parallel"),
    "dogwild": Category("asynchronous", "decentralized", "distributed Hogwild"),
    "parameter_server": Category(ANY, "centralized", "flexible consistency"),
    "essp": Category("bounded asynchronous", "centralized", "introduces eager SSP"),
    "malt": Category("asynchronous", "decentralized", "shared memory abstraction"),
    "hogwild++": Category("asynchronous", "decentralized", "NUMA-aware Hogwild"),
    "geeps": Category(ANY, "centralized", "GPU-specialized parameter server"),
    "dynssp": Category("bounded asynchronous", "centralized", "dynamic learning rates on SSP"),
    "a_bsp": Category("synchronous", "centralized or decentralized", "aggressive synchronization"),
    "crossbow": Category("synchronous", "decentralized", "synchronous model averaging"),
}
"""What the second survey's table says of those that run here."""

FEDERATED = "covey federate simulate FILE --strategy"

LATER: Mapping[str, str] = {
    "bonawitz": f"is the protocol of federated rounds (Bonawitz et al. 2019): use {FEDERATED} fedavg",
    "fedsgd": f"is federated: use {FEDERATED} fedsgd",
    "fedavg": f"is federated: use {FEDERATED} fedavg",
    "fedprox": f"is federated: use {FEDERATED} fedprox",
    "fedopt": f"is federated: use {FEDERATED} fedopt",
    "fedbuff": f"is federated: use {FEDERATED} fedbuff",
}
"""Names that are not run as the others are, or not yet, and what to do."""
