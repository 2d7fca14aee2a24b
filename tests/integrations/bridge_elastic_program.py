"""A part of a training under Megatron-Bridge's data module, whose loader state Bridge's own functions keep.

Run by ``test_bridge_elastic.py`` under ``energon_stream.run_megatron``, and torchrun, on any number of ranks.
The argument is a JSON object: ``data``, ``states`` (folder of loader states), ``begin`` and ``end`` (global
steps; ``begin`` is the iteration to load), ``save`` (the iteration to save, or null), ``workers``, ``out``
(folder for what each rank read) and ``functions``: ``bridge``, or ``lm`` for those of Megatron-LM. A list of
such objects, with ``world`` and ``streams``, runs one after the other in forks.
"""

import __future__

import ast
import functools
import importlib.metadata
import inspect
import json
import multiprocessing
import os
import random
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from bridge_modules import import_bridge
from megatron.core import parallel_state
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.rerun_state_machine import RerunDataIterator
from megatron.energon import DefaultTaskEncoder, stateless

MICRO_BATCHES = 24  # of a global batch


def site(name):
    """The folder of the installed packages that a distribution is in."""
    return Path(importlib.metadata.distribution(name).locate_file(""))


class Source:
    """Functions of an installed file, compiled as they are, without what else the file imports."""

    def __init__(self, root, module):
        self.root, self.path = root, root / f"{module.replace('.', '/')}.py"
        self.names = {"__name__": module, "__builtins__": __builtins__}
        tree = ast.parse(self.path.read_text())
        self.nodes = {}
        for node in tree.body:
            targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
            given = [alias.asname or alias.name for alias in getattr(node, "names", [])]
            for name in (
                *given,
                getattr(node, "name", None),
                *(getattr(each, "id", None) for each in targets),
            ):
                self.nodes.setdefault(name, node)

    def find(self, name):
        """The object of a name at the top of the file."""
        node = self.nodes.get(name)
        if name in self.names or node is None:
            return self.names.get(name)
        if isinstance(node, ast.ImportFrom) and node.module.startswith("megatron.bridge"):
            (source,) = (each.name for each in node.names if (each.asname or each.name) == name)
            self.names[name] = of(self.root, node.module).find(source)
            return self.names[name]
        if isinstance(node, ast.FunctionDef):
            needed = [*node.body, *node.decorator_list, *node.args.defaults, *node.args.kw_defaults]
        else:
            needed = [node]
        for part in filter(None, needed):
            for inner in ast.walk(part):
                if isinstance(inner, ast.Name) and inner.id != name:
                    self.find(inner.id)
        flags = __future__.annotations.compiler_flag
        exec(compile(ast.Module([node], []), str(self.path), "exec", flags), self.names)
        return self.names[name]


@functools.cache
def of(root, module):
    """The functions of an installed module, once for all."""
    return Source(root, module)


class Packs(DefaultTaskEncoder):
    """Augments samples, and packs them by length."""

    @stateless(restore_seeds=True)
    def encode_sample(self, sample):
        words = sample.text.split()
        random.shuffle(words)
        return sample.text, words[: random.randint(1, 9)], round(random.random(), 9)

    def select_samples_to_pack(self, samples):
        ordered = sorted(samples, key=lambda sample: (len(sample[1]), sample[0]))
        return [ordered[begin : begin + 3] for begin in range(0, len(ordered), 3)]

    @stateless
    def pack_selected_samples(self, samples):
        return samples

    def batch(self, samples):
        return samples


def load_as_in_megatron_lm(loader, name):
    """What Megatron-LM's ``examples/multimodal/dataloader_provider.py`` does; it begins anew on errors."""
    if os.path.exists(name):
        try:
            saved = torch.load(name, map_location="cpu", weights_only=False)
            loader.restore_state_rank(saved["dataloader_state_dict"])
        except Exception as e:
            sys.stdout.write(f"loading dataset state failed. Skipping. {e}")
    else:
        sys.stdout.write(f"dataset state {name} does not exist")


def main(data, states, begin, end, save, workers, out, functions, rank=0, world=0, meet=None):
    """Train from one step to another."""
    if meet is None:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=world)
    parallel_state.initialize_model_parallel()
    groups = ProcessGroupCollection.use_mpu_process_groups()
    rank, size = groups.dp.rank(), groups.dp.size()
    data_module = import_bridge()
    options = {"pg_collection": groups, "image_processor": None}
    known = inspect.signature(data_module).parameters
    module = data_module(
        path=data,
        tokenizer=None,
        micro_batch_size=1,
        num_workers=workers,
        task_encoder=Packs(),
        shuffle_buffer_size=20,
        max_samples_per_sequence=8,
        packing_buffer_size=7,
        **{name: value for name, value in options.items() if name in known},
    )
    loader = module.train_dataloader()
    iterator = RerunDataIterator(loader)
    is_bridge = functions == "bridge"
    found = of(site("megatron-bridge"), "megatron.bridge.training.checkpointing")
    if not is_bridge:
        found = of(site("megatron-core"), "megatron.training.checkpointing")
    load, keep = found.find("maybe_load_dataloader_state"), found.find("maybe_save_dataloader_state")
    if begin and is_bridge and load is not None:
        load(iterator, begin, states, pg_collection=groups)
    elif begin:  # Bridge had no function for it before 0.6
        folder = Path(states, f"iter_{begin:07d}", *([] if is_bridge else ["mp_rank_00"]))
        load_as_in_megatron_lm(
            module.train_dataloader_object, folder / f"train_dataloader_dprank{rank:03d}.pt"
        )
        loader._iter = iter(type(loader)(module.train_dataloader_object))
    with Path(out, f"{begin:04}-of-{size}-{rank}.jsonl").open("w") as file:
        for step in range(begin, end):
            for number in range(rank, MICRO_BATCHES, size):
                json.dump([step * MICRO_BATCHES + number, next(iterator)], file)
                file.write("\n")
            if step + 1 == save and is_bridge:
                keep(None, iterator, save, states, pg_collection=groups)
            elif step + 1 == save:
                keep(iterator, save, states)
    dist.barrier()
    dist.destroy_process_group()


def forked(world, streams, **arguments):
    """Run all ranks in forks of this process, which has imported everything."""
    os.environ["ENERGON_STREAM_NUM_STREAMS"] = streams
    context, meet = multiprocessing.get_context("fork"), f"{arguments['out']}.{arguments['begin']}.{world}"
    ranks = [
        context.Process(target=main, kwargs={**arguments, "rank": rank, "world": world, "meet": meet})
        for rank in range(world)
    ]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join()
    assert not any(each.exitcode for each in ranks), [each.exitcode for each in ranks]


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    if isinstance(given, dict):  # of one launch by torchrun
        main(**given)
    else:
        import_bridge()
        for launch in given:
            forked(**launch)
