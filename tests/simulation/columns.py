"""The process that makes columns, in the simulation: its requests are answered at once, by the same code."""

import json
from collections.abc import Mapping
from typing import Any

from anabranch.tables.process import ColumnProcess, ColumnsError
from anabranch.tables.worker import Worker


class SimColumns(ColumnProcess):
    """Answers in this process: what it makes depends on the request alone, and so does the run."""

    def __init__(self, *, memory_bytes_max: int) -> None:
        self._worker = Worker(lambda _progress: None)
        self._at = None
        self._tried = {}
        self.cpu_s = 0.0

    @property
    def process_id(self) -> None:
        return None

    def close(self) -> None:
        pass

    def _ask(self, request: Mapping[str, Any], _attempts: int = 1) -> dict[str, Any]:
        answer = self._worker.answer(json.loads(json.dumps(request)))
        if "error" in answer:
            raise ColumnsError(answer["error"], answer["text"])
        return answer
