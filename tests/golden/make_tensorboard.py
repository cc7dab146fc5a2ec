"""Writes events with TensorBoard's own record writer; src/train/event_file.rs must write the same bytes.

    python -m venv env && env/bin/pip install tensorboard==2.20.0
    env/bin/python tests/golden/make_tensorboard.py tests/golden/tensorboard
"""

import sys
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

TIME = 1_700_000_000.25


def scalars(step: int, values: list[tuple[str, float]]) -> Event:
    summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values])
    return Event(wall_time=TIME, step=step, summary=summary)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    events = [
        Event(wall_time=TIME, file_version="brain.Event:2"),
        Event(wall_time=TIME, step=300, session_log=SessionLog(status=SessionLog.START)),
        scalars(300, [("train/loss", 1.5), ("train/seconds/backward", 1e-3)]),
        scalars(0, [(f"evaluate/metric {at}", -float(at)) for at in range(40)]),
    ]
    with (folder / "events.out.tfevents.1700000000.golden").open("wb") as file:
        writer = RecordWriter(file)
        for event in events:
            writer.write(event.SerializeToString())
        writer.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
