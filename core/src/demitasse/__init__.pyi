"""The public names, for type checkers and editors; ``__init__.py`` imports them when used."""

from demitasse.arena import (
    Allocator as Allocator,
    Memory as Memory,
)
from demitasse_contracts.candidates import (
    check_candidate as check_candidate,
)
from demitasse_contracts.composed import (
    check_composed as check_composed,
    check_synchronised as check_synchronised,
)
from demitasse_contracts.elsewhere import (
    kernels_elsewhere as kernels_elsewhere,
)
from demitasse_contracts.gathering import (
    gathered_layer_types as gathered_layer_types,
    gathered_words as gathered_words,
)
from demitasse_contracts.given import (
    broken_contract as broken_contract,
    check_program as check_program,
    checked_hook as checked_hook,
    disagreement as disagreement,
)
from demitasse_contracts.levels import (
    check_levels as check_levels,
)
from demitasse_contracts.manifests import (
    Manifest as Manifest,
    discover as discover,
)
from demitasse_contracts.model_files import (
    readers_of as readers_of,
    unread_model as unread_model,
    writer_of as writer_of,
)
from demitasse_contracts.owners import (
    blamed as blamed,
    blamed_inside as blamed_inside,
    closed as closed,
    raised as raised,
    whose as whose,
)
from demitasse_contracts.words import (
    check_word as check_word,
)
from demitasse_contracts.works import (
    bound as bound,
)
from demitasse.composition import (
    Choice as Choice,
    Composition as Composition,
)
from demitasse.errors import (
    CompositionError as CompositionError,
    DataError as DataError,
    DemitasseError as DemitasseError,
    DescriptionError as DescriptionError,
    Location as Location,
    ModelError as ModelError,
    NumericsError as NumericsError,
    PlanError as PlanError,
    PluginError as PluginError,
    Rooted as Rooted,
    ShapeError as ShapeError,
    SnapshotError as SnapshotError,
    WorkerError as WorkerError,
    nearest as nearest,
    unknown as unknown,
)
from demitasse_files.contents import (
    looks_like as looks_like,
    looks_like_at as looks_like_at,
)
from demitasse_files.image_folders import (
    IMAGE_ENDINGS as IMAGE_ENDINGS,
    images_by_class as images_by_class,
)
from demitasse_files.image_headers import (
    check_image as check_image,
    image_size as image_size,
)
from demitasse_files.named import (
    check_file as check_file,
    check_plain as check_plain,
    file_text as file_text,
    nearest_path as nearest_path,
)
from demitasse_files.outputs import (
    check_writable as check_writable,
    write_json as write_json,
)
from demitasse.hookspecs import (
    HOOKS as HOOKS,
    hookimpl as hookimpl,
)
from demitasse_host.compiler import (
    compile_once as compile_once,
    compiled_callback as compiled_callback,
    compiled_loop as compiled_loop,
    load_numba as load_numba,
)
from demitasse_host.echoes import (
    printable as printable,
    shortened as shortened,
)
from demitasse_host.files import (
    SPECIAL_FILE as SPECIAL_FILE,
    cache_folder as cache_folder,
    expanded as expanded,
    folder_beside as folder_beside,
    is_file as is_file,
    is_folder as is_folder,
    is_special as is_special,
    is_there as is_there,
    locked as locked,
    matching as matching,
    open_plain as open_plain,
    replacing as replacing,
    write_text as write_text,
)
from demitasse_host.fingerprint import (
    fingerprint as fingerprint,
)
from demitasse_host.forks import (
    after_fork as after_fork,
    lose_threads as lose_threads,
    process_lock as process_lock,
    threads_here as threads_here,
)
from demitasse_host.installed import (
    Installed as Installed,
    installed as installed,
)
from demitasse_host.kernel_files import (
    KernelFiles as KernelFiles,
    listed_numbers as listed_numbers,
)
from demitasse_host.kept_loops import (
    damaged_loops as damaged_loops,
)
from demitasse_host.launch import (
    Launch as Launch,
    launched as launched,
    launched_by_srun as launched_by_srun,
    local_rank as local_rank,
)
from demitasse_host.memory import (
    HostAllocator as HostAllocator,
    HostMemory as HostMemory,
    LARGE_PAGE as LARGE_PAGE,
    address_space as address_space,
    available_bytes as available_bytes,
    host_array as host_array,
    in_pages as in_pages,
    zeroed as zeroed,
)
from demitasse_host.threads import (
    Workers as Workers,
)
from demitasse_host.waits import (
    waits_for_cores as waits_for_cores,
)
from demitasse.machine import (
    Level as Level,
    Link as Link,
    Machine as Machine,
    MemorySpace as MemorySpace,
    SyncSpec as SyncSpec,
)
from demitasse_contracts.samples import (
    SampleError as SampleError,
    opened_source as opened_source,
)
from demitasse_descriptions import (
    DescribedMachine as DescribedMachine,
    PluginOptions as PluginOptions,
    Quantity as Quantity,
    Rate as Rate,
    RatedOperation as RatedOperation,
    check_host_memory as check_host_memory,
    check_sync_options as check_sync_options,
    describe as describe,
    described_machines as described_machines,
    find_machine as find_machine,
    gathered_options as gathered_options,
    load_machine as load_machine,
    option_place as option_place,
    sync_place as sync_place,
    unallocated as unallocated,
    unoffered as unoffered,
    unread as unread,
    unstreamed as unstreamed,
)
from demitasse_descriptions.uninstalled import (
    uninstalled as uninstalled,
)
from demitasse_models import (
    DataSource as DataSource,
    DataSpec as DataSpec,
    Event as Event,
    Field as Field,
    Finding as Finding,
    GraphBuilder as GraphBuilder,
    Layer as Layer,
    LayerType as LayerType,
    ModelReader as ModelReader,
    NetDefinition as NetDefinition,
    PRECISIONS as PRECISIONS,
    Solver as Solver,
    Stream as Stream,
    Weights as Weights,
)
from demitasse_models.programs import (
    Blob as Blob,
    Net as Net,
    NetFile as NetFile,
    NetOptions as NetOptions,
    Result as Result,
    SolverFile as SolverFile,
    TrainedNet as TrainedNet,
    Trainer as Trainer,
    TrainerOptions as TrainerOptions,
    WeightsFiles as WeightsFiles,
)
from demitasse.operations.graph import (
    Feed as Feed,
    Filler as Filler,
    Graph as Graph,
    Node as Node,
    Parameter as Parameter,
    Tensor as Tensor,
    by_operand as by_operand,
    shapes_by_operand as shapes_by_operand,
)
from demitasse.operations.kernel import (
    Bind as Bind,
    Candidate as Candidate,
    Layout as Layout,
    PLAIN as PLAIN,
    Place as Place,
    Request as Request,
    TensorSpec as TensorSpec,
    Work as Work,
)
from demitasse_random import (
    RandomStream as RandomStream,
    crop_and_mirror as crop_and_mirror,
    keep_mask as keep_mask,
    permutation as permutation,
    philox4x32 as philox4x32,
    random_key as random_key,
)
from demitasse.operations.selection import (
    Kernels as Kernels,
    Tuner as Tuner,
)
from demitasse.plan import (
    Buffer as Buffer,
    Entry as Entry,
    Plan as Plan,
    Slot as Slot,
)
from demitasse.planning import (
    make_plan as make_plan,
)
from demitasse.runtime import (
    Runtime as Runtime,
    compose as compose,
)
from demitasse_schedules import (
    Algorithm as Algorithm,
    Cost as Cost,
    InRounds as InRounds,
    Move as Move,
    Proof as Proof,
    RANK_MAPS as RANK_MAPS,
    Round as Round,
    Schedule as Schedule,
    Tier as Tier,
    Topology as Topology,
    check as check,
    cost as cost,
    joined as joined,
    missing_number as missing_number,
    play as play,
    rounds_of as rounds_of,
    run_threads as run_threads,
    topology as topology,
)
from demitasse.step import (
    Phases as Phases,
    Step as Step,
    in_rows as in_rows,
    prepare as prepare,
)
from demitasse_streams import (
    EngineEvent as EngineEvent,
    EngineStream as EngineStream,
    StreamEngine as StreamEngine,
    check_engine as check_engine,
)
from demitasse.synchronisation import (
    Bucket as Bucket,
    FlatMemory as FlatMemory,
    GradientSync as GradientSync,
    Group as Group,
    Processes as Processes,
    Span as Span,
    Team as Team,
    chain as chain,
)
from demitasse.workers import (
    WorkerPlace as WorkerPlace,
    arrange as arrange,
)

__version__: str
