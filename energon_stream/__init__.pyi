"""The names of the package, by the module that defines them: the only list of them.

``__init__.py`` reads this file and imports each name when it is first used.
"""

from .cache import CacheConfig as CacheConfig
from .tools.doctor import Diagnosis as Diagnosis, diagnose as diagnose
from .engine.cluster import RayEngine as RayEngine
from .engine.processes import LocalEngine as LocalEngine
from .errors import (
    FatalSampleError as FatalSampleError,
    IgnoreSample as IgnoreSample,
    SkipSample as SkipSample,
)
from .index.bad_samples import (
    BadSample as BadSample,
    read_bad_samples as read_bad_samples,
    write_bad_samples as write_bad_samples,
)
from .index.file_format import (
    FileFormat as FileFormat,
    OpenedFile as OpenedFile,
    register_dataset_format as register_dataset_format,
)
from .media.metadata import (
    AVMetadata as AVMetadata,
    ImageMetadata as ImageMetadata,
    MediaMetadataBase as MediaMetadataBase,
    MediaMetadataType as MediaMetadataType,
    deserialize_media_metadata as deserialize_media_metadata,
    serialize_media_metadata as serialize_media_metadata,
)
from .limits import Limits as Limits
from .lineage.answers import (
    Occurrence as Occurrence,
    RankStep as RankStep,
    StepSample as StepSample,
)
from .lineage.run import TrainingRun as TrainingRun, open_run as open_run
from .tables.costs import read_costs as read_costs
from .tables.filter_index import (
    FilterIndex as FilterIndex,
    FilterIndexWriter as FilterIndexWriter,
    build_filter_index as build_filter_index,
    build_filter_index_from_global_indexes as build_filter_index_from_global_indexes,
    build_filter_index_from_shard_indexes as build_filter_index_from_shard_indexes,
)
from .tools.lint.check_dataset import lint_dataset as lint_dataset
from .loader import (
    BasicDataLoader as BasicDataLoader,
    JobStats as JobStats,
    LoaderStats as LoaderStats,
    MixtureReport as MixtureReport,
    SavableDataLoader as SavableDataLoader,
    SourceCount as SourceCount,
    Verdict as Verdict,
    get_loader as get_loader,
    get_savable_loader as get_savable_loader,
)
from .media import (
    CachePool as CachePool,
    DecodeFileStore as DecodeFileStore,
    DirectLazy as DirectLazy,
    FileCacheLazy as FileCacheLazy,
    FileStore as FileStore,
    FileStoreCachePool as FileStoreCachePool,
    Lazy as Lazy,
    MockLazy as MockLazy,
    NoCachePool as NoCachePool,
    PrimaryFileStore as PrimaryFileStore,
)
from .pipeline import (
    BatchDataset as BatchDataset,
    BlendDataset as BlendDataset,
    ConcatDataset as ConcatDataset,
    EpochizeDataset as EpochizeDataset,
    EvenDataset as EvenDataset,
    FilterDataset as FilterDataset,
    GcDataset as GcDataset,
    GroupBatchDataset as GroupBatchDataset,
    IterMapDataset as IterMapDataset,
    LimitDataset as LimitDataset,
    LogSampleDataset as LogSampleDataset,
    MapDataset as MapDataset,
    MixBatchDataset as MixBatchDataset,
    PackedSamplesOutput as PackedSamplesOutput,
    PackingDataset as PackingDataset,
    PartialSample as PartialSample,
    RepeatDataset as RepeatDataset,
    SavableDataset as SavableDataset,
    ShuffleBufferDataset as ShuffleBufferDataset,
    log_exception as log_exception,
    reraise_exception as reraise_exception,
)
from .pipeline.planned_packing import (
    PlannedPack as PlannedPack,
    PlannedPackingDataset as PlannedPackingDataset,
)
from .pipeline.collate import (
    batch_list as batch_list,
    batch_pad_stack as batch_pad_stack,
    batch_stack as batch_stack,
    concat_pad as concat_pad,
    generic_batch as generic_batch,
    generic_concat as generic_concat,
    homogeneous_concat_mix as homogeneous_concat_mix,
)
from .prewarming import (
    PrewarmPlan as PrewarmPlan,
    PrewarmResult as PrewarmResult,
    prewarm as prewarm,
)
from .decode import (
    FileStoreDecoder as FileStoreDecoder,
    SampleDecoder as SampleDecoder,
)
from .auxiliary import (
    AuxFileStoreReference as AuxFileStoreReference,
    ByteRangeStore as ByteRangeStore,
    SystemFileStore as SystemFileStore,
    register_aux_filestore_protocol as register_aux_filestore_protocol,
)
from .read.read_options import ReadOptions as ReadOptions
from .config import (
    DatasetLoader as DatasetLoader,
    DatasetLoaderInterface as DatasetLoaderInterface,
    LoadedDatasetList as LoadedDatasetList,
    Metadataset as Metadataset,
    MapStyleDataset as MapStyleDataset,
    MetadatasetV2 as MetadatasetV2,
    open_dataset as open_dataset,
    get_train_dataset as get_train_dataset,
    get_val_dataset as get_val_dataset,
    get_processing_dataset as get_processing_dataset,
    get_processing_datasets as get_processing_datasets,
    get_val_datasets as get_val_datasets,
    load_dataset as load_dataset,
    prepare_metadataset as prepare_metadataset,
    traverse_metadataset as traverse_metadataset,
)
from .config.planned_packs import PlannedPacking as PlannedPacking
from .samples import (
    Batch as Batch,
    CrudeSample as CrudeSample,
    Sample as Sample,
    SourceInfo as SourceInfo,
    edataclass as edataclass,
)
from .samples.encoded_images import EncodedImages as EncodedImages
from .samples.types import (
    CaptioningSample as CaptioningSample,
    ImageClassificationSample as ImageClassificationSample,
    ImageSample as ImageSample,
    InterleavedSample as InterleavedSample,
    MultiChoiceVQASample as MultiChoiceVQASample,
    OCRSample as OCRSample,
    SimilarityInterleavedSample as SimilarityInterleavedSample,
    TextSample as TextSample,
    VidQASample as VidQASample,
    VQAOCRSample as VQAOCRSample,
    VQASample as VQASample,
)
from .storage import CounterSnapshot as CounterSnapshot, register_store as register_store
from .task import (
    AugmentTaskEncoder as AugmentTaskEncoder,
    Cooker as Cooker,
    DatasetBlendMode as DatasetBlendMode,
    DefaultTaskEncoder as DefaultTaskEncoder,
    PackingGroupConfig as PackingGroupConfig,
    TaskEncoder as TaskEncoder,
    basic_sample_keys as basic_sample_keys,
    cooker as cooker,
    stateless as stateless,
    sample_size_metric as sample_size_metric,
)
from .task.packers import (
    LengthPacker as LengthPacker,
    best_fit_decreasing as best_fit_decreasing,
    first_fit as first_fit,
    histogram_pack as histogram_pack,
    pack_by_size as pack_by_size,
)
from .worker import WorkerConfig as WorkerConfig
from .tools.curation.compute_costs import CostReport as CostReport, compute_costs as compute_costs
from .tools.curation.derive import (
    merge_datasets as merge_datasets,
    sample_dataset as sample_dataset,
    split_dataset as split_dataset,
)
from .prepare.prepare import PrepareReport as PrepareReport, prepare_dataset as prepare_dataset
from .prepare.add_tables import (
    TableReport as TableReport,
    add_media_table as add_media_table,
    add_table as add_table,
    list_tables as list_tables,
    remove_table as remove_table,
)
from .tools.repair.repair_dataset import RepairReport as RepairReport, repair_dataset as repair_dataset
from .tools.repair.repair_plan import TarReport as TarReport
from .tools.curation.map_shards import map_shards as map_shards
from .tools.curation.diff import diff_datasets as diff_datasets
from .write.convert import ConvertReport as ConvertReport, convert_dataset as convert_dataset
from .write.finish import finish_dataset as finish_dataset
from .write.shard_writer import ShardWriter as ShardWriter

__version__: str
