from .get_datasets import (
    get_train_dataset as get_train_dataset,
    get_val_dataset as get_val_dataset,
    get_processing_dataset as get_processing_dataset,
    get_processing_datasets as get_processing_datasets,
    get_val_datasets as get_val_datasets,
)
from .interface import (
    DatasetLoader as DatasetLoader,
    DatasetLoaderInterface as DatasetLoaderInterface,
    LoadedDatasetList as LoadedDatasetList,
    Metadataset as Metadataset,
    MetadatasetV2 as MetadatasetV2,
    load_dataset as load_dataset,
    traverse_metadataset as traverse_metadataset,
)
from .map_style import MapStyleDataset as MapStyleDataset, open_dataset as open_dataset
from .join_indices import prepare_metadataset as prepare_metadataset
