"""MLflow: MLFLOW_TRACKING_URI says where; runs that go on with another are found by their key."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from mpt.loggers import PROJECT, Logger, RunInfo

PACKAGE = "mlflow"

_KEY = "mpt.key"
_LONGEST_PARAM = 500
_STATUS = {"done": "FINISHED", "interrupted": "KILLED"}


def open_logger(run: RunInfo) -> Logger:
    from mlflow.tracking import MlflowClient

    client: Any = MlflowClient()
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
    found = client.get_experiment_by_name(name)
    experiment = found.experiment_id if found is not None else client.create_experiment(name)
    earlier = client.search_runs([experiment], filter_string=f"tags.`{_KEY}` = '{run.key}'", max_results=1)
    if earlier:
        run_id = earlier[0].info.run_id
        client.update_run(run_id, status="RUNNING")
    else:
        run_id = client.create_run(experiment, run_name=run.name, tags={_KEY: run.key}).info.run_id
        for key, value in run.config.items():
            client.log_param(run_id, key, str(value)[:_LONGEST_PARAM])
    return _MLflow(client, run_id)


class _MLflow:
    def __init__(self, client: Any, run_id: str) -> None:
        self._client, self._id = client, run_id

    def log(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._client.log_batch(self._id, metrics=[Metric(name, value, now, step) for name, value in values.items()])

    def finish(self, status: str) -> None:
        self._client.set_terminated(self._id, status=_STATUS.get(status, "FAILED"))
