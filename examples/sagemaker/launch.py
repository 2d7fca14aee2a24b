"""Starts a training job on SageMaker. Run ``pip install sagemaker``, adapt what is marked, and run this file.

SageMaker runs torchrun on each instance. What is written to /opt/ml/checkpoints is kept in
``checkpoint_s3_uri``, and is there again when a spot instance was lost: it goes on at the newest complete
checkpoint, also with another ``instance_count``. The ranks (instances x GPUs) have to divide the number of
streams, 12 in examples/train_ddp.py. ``examples/requirements.txt`` has to name energon-stream.
"""

from sagemaker.pytorch import PyTorch

PyTorch(
    entry_point="train_ddp.py",
    source_dir="examples",
    role="arn:aws:iam::111122223333:role/training",  # yours; it has to read the bucket, so no keys are passed
    framework_version="2.6",
    py_version="py312",
    instance_count=3,
    instance_type="ml.g5.12xlarge",  # 4 GPUs
    distribution={"torch_distributed": {"enabled": True}},
    use_spot_instances=True,
    max_run=86400,
    max_wait=172800,
    checkpoint_s3_uri="s3://bucket/checkpoints",  # yours
    hyperparameters={
        "data": "s3://bucket/dataset",  # yours, prepared; streamed, so no input channel is needed
        "checkpoint": "/opt/ml/checkpoints",
        "record": "/opt/ml/output/data/steps.txt",
        "steps": 1000,
        "save-every": 50,
        "workers": 4,
    },
).fit()
