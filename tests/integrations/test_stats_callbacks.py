"""Statistics in the loggers of Lightning and transformers, in OpenTelemetry and in Prometheus."""

import gc
import json

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers.logger import DummyLogger
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest
from transformers import TrainerCallback, TrainingArguments

from energon_stream import DefaultTaskEncoder, WorkerConfig, get_loader, get_train_dataset, get_val_dataset
from energon_stream.errors import ConfigError
from energon_stream.integrations import huggingface, lightning
from energon_stream.integrations.opentelemetry import observe_loader, send_spans
from energon_stream.integrations.prometheus import LoaderCollector
from energon_stream.loader.observe.metrics import METRICS
from energon_stream.testing.datasets import prepared_text_dataset

NAME = "energon_stream/samples_per_second"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return prepared_text_dataset(
        tmp_path_factory.mktemp("metrics") / "data", split_ratio=(1, 1, 0), shards=2, samples_per_shard=20
    )


def open_loader(folder):
    return get_loader(get_val_dataset(folder, batch_size=4, worker_config=WorkerConfig(0, 1, 0)))


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(torch.ones(1, 1)).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Logger(DummyLogger):
    def __init__(self):
        super().__init__()
        self.written = []

    def log_metrics(self, metrics, step=None):
        if NAME in metrics:
            self.written.append((step, metrics))


def fit(logger, data, **options):
    trainer = Trainer(
        max_steps=6,
        logger=logger,
        log_every_n_steps=2,
        callbacks=[lightning.StatsCallback()],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
    )
    trainer.fit(Model(), data, **options)


def test_lightning_loggers_get_statistics(folder):
    logger = Logger()
    options = {"batch_size": 2, "shuffle_buffer_size": None, "max_samples_per_sequence": None}
    fit(logger, lightning.EnergonDataModule(str(folder), num_workers=0, train_options=options))
    assert [step for step, _ in logger.written] == [2, 4, 6]
    assert all(values[NAME] > 0 for _, values in logger.written)


def test_lightning_with_other_loaders_is_refused():
    with pytest.raises(ConfigError, match="DataLoader, which has no statistics"):
        fit(Logger(), torch.utils.data.DataLoader(list(range(20))))


class Encoder(DefaultTaskEncoder):
    def encode_batch(self, batch):
        return {"inputs": torch.ones(len(batch.__key__), 1)}


class Scalar(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, inputs):
        return {"loss": self.layer(inputs).square().mean()}


class Reporter(TrainerCallback):
    """A reporter that is there before the callback, as those of ``report_to`` are."""

    def __init__(self):
        self.seen = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.seen.append(dict(logs))


def test_reporters_of_transformers_get_statistics(folder, tmp_path):
    reporter = Reporter()
    dataset = get_train_dataset(
        folder,
        batch_size=2,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        worker_config=WorkerConfig(0, 1, 0),
        task_encoder=Encoder(),
    )
    arguments = TrainingArguments(
        str(tmp_path),
        max_steps=6,
        logging_steps=2,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = huggingface.EnergonTrainer(
        Scalar(), arguments, train_dataset=dataset, callbacks=[reporter, huggingface.StatsCallback()]
    )
    trainer.train()
    with_loss = [logs for logs in reporter.seen if "loss" in logs]
    assert len(with_loss) == 3
    assert all(logs[NAME] > 0 for logs in with_loss)
    assert all(NAME not in logs for logs in reporter.seen if "loss" not in logs)


def test_transformers_with_other_loaders_is_refused():
    callback = huggingface.StatsCallback()
    with pytest.raises(ConfigError, match="list, which has no statistics"):
        callback.on_log(None, None, None, {"loss": 1.0}, train_dataloader=[])
    with pytest.raises(AttributeError, match="nothing"):
        _ = huggingface.nothing


def test_opentelemetry_collects_and_lets_go(folder):
    reader, loader = InMemoryMetricReader(), open_loader(folder)
    observe_loader(loader, "val", meter_provider=MeterProvider([reader]))

    def collect():
        data = reader.get_metrics_data()
        found = data.resource_metrics[0].scope_metrics[0].metrics if data else []
        return {metric.name: metric for metric in found}

    assert collect()["energon_stream.samples"].data.data_points[0].value == 0
    list(loader)
    found = collect()
    point = found["energon_stream.samples"].data.data_points[0]
    assert (point.value, dict(point.attributes)) == (20, {"loader": "val", "rank": 0})
    assert {found[name].unit for name in ("energon_stream.wait", "energon_stream.received")} == {"s", "By"}
    looks = found["energon_stream.looks"].data.data_points if "energon_stream.looks" in found else []
    assert {point.attributes["cause"] for point in looks} == set(loader.stats().profile.causes)
    del loader
    gc.collect()
    assert collect() == {}


def test_a_trace_becomes_spans(folder, tmp_path):
    path, exporter, provider = tmp_path / "trace.json", InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    loader = open_loader(folder)
    with loader.trace(path):
        list(loader)
    assert send_spans(path, tracer_provider=provider) == len(exporter.get_finished_spans())
    spans = [span for span in exporter.get_finished_spans() if span.name == "batch wait"]
    (root,) = [span for span in exporter.get_finished_spans() if span.name == "trace"]
    assert [span.attributes["energon_stream.batch"] for span in spans] == list(range(5))
    assert {span.parent.span_id for span in spans} == {root.context.span_id}
    assert root.start_time <= spans[0].start_time <= spans[-1].end_time <= root.end_time
    for text in ("", "{}", json.dumps([1])):
        path.write_text(text)
        with pytest.raises(ConfigError, match="cannot be read"):
            send_spans(path, tracer_provider=provider)


def test_prometheus_collects_and_lets_go(folder):
    registry, loader = CollectorRegistry(), open_loader(folder)
    registry.register(LoaderCollector(loader, "val"))
    list(loader)
    text = generate_latest(registry).decode()
    labels = '{loader="val",rank="0"}'
    assert f"energon_stream_samples_total{labels} 20.0" in text
    assert f"energon_stream_wait_seconds_total{labels}" in text
    assert f"energon_stream_first_batch_seconds{labels}" in text
    assert f"energon_stream_received_bytes_total{labels} 0.0" in text
    assert text.count("# HELP") == len(METRICS)
    del loader
    gc.collect()
    assert generate_latest(registry) == b""
