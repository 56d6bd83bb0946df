# The public names, each once: type checkers read them here, and so does __init__.py when one is first used.
from cordwood.api import clean as clean
from cordwood.api import clean_in_place as clean_in_place
from cordwood.api import ls as ls
from cordwood.api import plan as plan
from cordwood.api import plan_exact as plan_exact
from cordwood.api import verify as verify
from cordwood.cleaning.plan import Decision as Decision
from cordwood.cleaning.plan import PartitionPlan as PartitionPlan
from cordwood.cleaning.plan import Plan as Plan
from cordwood.commands.read import check as check
from cordwood.commands.read import open_log as open_log
from cordwood.commands.undo import undo as undo
from cordwood.engine.results import CleanResult as CleanResult
from cordwood.engine.results import ExactPlan as ExactPlan
from cordwood.engine.results import Fate as Fate
from cordwood.engine.results import PartitionResult as PartitionResult
from cordwood.errors import CordwoodError as CordwoodError
from cordwood.errors import DataError as DataError
from cordwood.errors import RequestError as RequestError
from cordwood.record.batch import Batch as Batch
from cordwood.record.record import Record as Record
from cordwood.storage.changes.undo import UndoResult as UndoResult
from cordwood.storage.check import Finding as Finding
from cordwood.storage.check import Kind as Kind
from cordwood.storage.check import Severity as Severity
from cordwood.storage.log.transactions import Isolation as Isolation
from cordwood.storage.log.view import LogView as LogView
from cordwood.storage.node.listing import Listing as Listing
from cordwood.storage.node.listing import PartitionListing as PartitionListing
from cordwood.storage.node.listing import SegmentListing as SegmentListing
from cordwood.types import TopicPartition as TopicPartition
from cordwood.verification.result import VerifyResult as VerifyResult
from cordwood.verification.violations import Verdict as Verdict
from cordwood.verification.violations import Violation as Violation

__all__: list[str]
