"""How is a run kept? Tensors as safetensors, the rest as JSON, a whole directory at once or not at all.

DIR/.lock                         held by the run that writes here, and freed by its end, however it ends
DIR/latest                        the name of the newest checkpoint
DIR/log.jsonl                     which launchers have led the run, which checkpoints they kept, how it ended
DIR/checkpoint-000012/run.json    strategy, progress, the size and SHA-256 of every other file, and of itself
                      worker-0.json, worker-0.safetensors, server-0.json, ...
"""

from __future__ import annotations

from covey.checkpoint.directory import KEEP, CheckpointDirectory
from covey.checkpoint.files import MODE
from covey.checkpoint.record import RunRecord
from covey.checkpoint.role_state import RoleState, StateCopy

__all__ = ["KEEP", "MODE", "CheckpointDirectory", "RoleState", "RunRecord", "StateCopy"]
