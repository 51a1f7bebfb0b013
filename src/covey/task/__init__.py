"""What does the user hand in?"""

from covey.task.definition import HISTORY, Score, Task, scores
from covey.task.file import TASK_MODULE, import_file, load_task, task_hash
from covey.task.private import PrivateSgd

__all__ = ["HISTORY", "TASK_MODULE", "PrivateSgd", "Score", "Task", "import_file", "load_task", "scores", "task_hash"]
