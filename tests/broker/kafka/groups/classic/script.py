"""Runs a script of events against a classic group and prints the results, for tests with expected output.

A script is a sequence of blocks, separated by blank lines. A block is command lines, `----`, and the expected output of
all of them, in order. `#` begins a comment. Commands:

    settings KEY=INT ...                       only first
    join NAME [id=ID] [instance=ID] [topics=T] [protocols=P:T,P:T] [type=T] [session=MS] [rebalance=MS] [v=N]
    sync NAME [id=ID] [instance=ID] [generation=N] [type=T] [protocol=P] [MEMBER:ASSIGNMENT ...]
    heartbeat ID [instance=ID] [generation=N]
    leave ID|- [instance=ID]
    commit [id=ID] [instance=ID] [generation=N]
    written | failed                           the oldest write under way
    wait MS                                    time passes; deadlines on the way are met
    check delete|delete_offsets
    kill                                       the group is deleted
    resign                                     the coordinator stops
    restart                                    the group comes back from the last snapshot written

NAME identifies the answer and is the client id; member ids are NAME.1, NAME.2 and so on. `id=` defaults to the
last id the name was given, `generation=` to the current one.
"""

from anabranch.broker.kafka.coordination.log import KeyValue
from anabranch.broker.kafka.groups.classic.group import ClassicGroup
from anabranch.broker.kafka.groups.classic.kind import ClassicKind
from anabranch.broker.kafka.groups.classic.machine import ClassicMachine
from anabranch.broker.kafka.groups.classic.records import parse_snapshot
from anabranch.broker.kafka.groups.interface import Outcome
from anabranch.broker.kafka.groups.requests import (
    NEVER_MS,
    ClassicHeartbeat,
    CommitRequest,
    JoinRequest,
    JoinResponse,
    LeaveRequest,
    LeavingMember,
    MemberProtocol,
    Now,
    SyncRequest,
    SyncResponse,
)
from anabranch.broker.node.settings.client_areas import GroupSettings
from anabranch.protocol.errors import ErrorCode


class GroupScript:
    """One group, one virtual clock."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.machine = ClassicMachine(ClassicGroup("group"), GroupSettings())
        self.ids: dict[str, str] = {}
        self.counts: dict[str, int] = {}
        self.writes: list[Outcome] = []
        self.stored: dict[bytes, bytes] = {}
        self.out: list[str] = []

    def run(self, text: str) -> str:
        """Run a whole script; returns it with the current output."""
        blocks = []
        for block in text.strip().split("\n\n"):
            commands = block.split("\n----")[0]
            self.out = []
            for line in commands.splitlines():
                if line and not line.startswith("#"):
                    self.command(line)
            if any(line and not line.startswith("#") for line in commands.splitlines()):
                blocks.append(f"{commands}\n----\n" + "\n".join([*self.out, self.state()]))
            else:
                blocks.append(commands)
        return "\n\n".join(blocks) + "\n"

    def command(self, line: str) -> None:
        name, *words = line.split()
        options = dict(word.split("=", 1) for word in words if "=" in word)
        getattr(self, f"do_{name}")([word for word in words if "=" not in word], options)

    @property
    def group(self) -> ClassicGroup:
        return self.machine.group

    @property
    def now(self) -> Now:
        return Now(self.now_ms, 1_000_000 + self.now_ms)

    def state(self) -> str:
        group = self.group
        wake = "never" if group.wake_ms == NEVER_MS else f"{group.wake_ms}"
        members = ",".join(group.members) or "-"
        pending = f" pending={','.join(group.pending)}" if group.pending else ""
        return (
            f"= {group.state} generation={group.generation} leader={group.leader or '-'} members={members}{pending} "
            f"at={self.now_ms} wake={wake}"
        )

    # commands

    def do_settings(self, words: list[str], options: dict[str, str]) -> None:
        settings = GroupSettings.of({key: int(value) for key, value in options.items()})
        self.machine = ClassicMachine(ClassicGroup("group"), settings)

    def do_join(self, words: list[str], options: dict[str, str]) -> None:
        name = words[0]
        version = int(options.get("v", "9"))
        offered = options.get("protocols", "range:" + options.get("topics", "t"))
        count = self.counts.get(name, 0) + 1
        protocols = [MemberProtocol(p.split(":")[0], p.split(":")[1].encode()) for p in offered.split(",") if p]
        request = JoinRequest(
            ticket=name,
            member_id=self.id_of(name, options),
            new_member_id=f"{name}.{count}",
            group_instance_id=options.get("instance"),
            client_id=name,
            client_host="/127.0.0.1",
            session_timeout_ms=int(options.get("session", "10000")),
            rebalance_timeout_ms=int(options.get("rebalance", "60000")),
            protocol_type=options.get("type", "consumer"),
            protocols=protocols,
            member_id_required=version >= 4,
            can_skip_assignment=version >= 9,
        )
        outcome = self.machine.handle(request, self.now)
        if request.new_member_id in self.group.members.keys() | self.group.pending.keys():
            self.counts[name] = count
        self.carry_out(outcome)

    def do_sync(self, words: list[str], options: dict[str, str]) -> None:
        name = words[0]
        request = SyncRequest(
            ticket=name,
            member_id=self.id_of(name, options),
            group_instance_id=options.get("instance"),
            generation=int(options.get("generation", self.group.generation)),
            protocol_type=options.get("type"),
            protocol_name=options.get("protocol"),
            assignments={word.split(":")[0]: word.split(":")[1].encode() for word in words[1:]},
        )
        self.carry_out(self.machine.handle(request, self.now))

    def do_heartbeat(self, words: list[str], options: dict[str, str]) -> None:
        generation = int(options.get("generation", self.group.generation))
        heartbeat = ClassicHeartbeat(words[0], options.get("instance"), generation)
        self.out.append(f"{words[0]}: heartbeat {self.machine.handle(heartbeat, self.now).answer.name}")

    def do_leave(self, words: list[str], options: dict[str, str]) -> None:
        leavers = [LeavingMember("" if word == "-" else word, options.get("instance")) for word in words]
        outcome = self.machine.handle(LeaveRequest(leavers), self.now)
        self.out.append("leave " + " ".join(error.name for error in outcome.answer))
        self.carry_out(outcome)

    def do_commit(self, words: list[str], options: dict[str, str]) -> None:
        generation = int(options.get("generation", self.group.generation))
        commit = CommitRequest(options.get("id", ""), options.get("instance"), generation)
        self.out.append(f"commit {self.machine.check_commit(commit, self.now).name}")

    def do_written(self, words: list[str], options: dict[str, str]) -> None:
        self.stored = {key: value for key, value in self.writes[0].records if value is not None}
        self.end_write(ErrorCode.NONE)

    def do_failed(self, words: list[str], options: dict[str, str]) -> None:
        self.end_write(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def end_write(self, error: ErrorCode) -> None:
        then = self.writes.pop(0).then
        assert then is not None, "a classic group is not ahead of its log"
        self.carry_out(then(error, self.now))

    def do_wait(self, words: list[str], options: dict[str, str]) -> None:
        end_ms = self.now_ms + int(words[0])
        while self.group.wake_ms <= end_ms:
            self.now_ms = max(self.now_ms, self.group.wake_ms)
            outcome = self.machine.tick(self.now)
            if outcome.responses or outcome.records:
                self.out.append(f"at {self.now_ms}:")
            self.carry_out(outcome)
        self.now_ms = end_ms

    def do_check(self, words: list[str], options: dict[str, str]) -> None:
        error = self.group.check_delete() if words[0] == "delete" else self.group.check_delete_offsets()
        self.out.append(f"{words[0]} {error.name}")

    def do_kill(self, words: list[str], options: dict[str, str]) -> None:
        self.machine.retire()

    def do_resign(self, words: list[str], options: dict[str, str]) -> None:
        self.carry_out(self.machine.resign(self.now))

    def do_restart(self, words: list[str], options: dict[str, str]) -> None:
        self.writes.clear()
        self.machine = ClassicKind(GroupSettings()).restore("group", self.stored, self.now)

    # output

    def id_of(self, name: str, options: dict[str, str]) -> str:
        given = options.get("id")
        return self.ids.get(name, "") if given is None else ("" if given == "-" else given)

    def carry_out(self, outcome: Outcome) -> None:
        for name, response in outcome.responses:
            match response:
                case JoinResponse() as answer:
                    self.out.append(f"{name}: {self.joined(answer)}")
                    if answer.error in {ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED}:
                        self.ids[str(name)] = answer.member_id
                case SyncResponse() as answer:
                    assignment = f" assignment={answer.assignment.decode()}" if not answer.error else ""
                    self.out.append(f"{name}: sync {answer.error.name}{assignment}")
        if outcome.records:
            self.writes.append(outcome)
            self.out += map(written, outcome.records)

    @staticmethod
    def joined(answer: JoinResponse) -> str:
        if answer.error:
            return f"join {answer.error.name} id={answer.member_id or '-'}"
        members = " ".join(f"{member.member_id}({member.metadata.decode()})" for member in answer.members)
        skip = " skip" if answer.skip_assignment else ""
        return (
            f"join NONE id={answer.member_id} generation={answer.generation} protocol={answer.protocol_name} "
            f"leader={answer.leader}{skip} [{members}]"
        )


def written(record: KeyValue) -> str:
    assert record.value is not None
    snapshot = parse_snapshot(record.value)
    members = " ".join(
        f"{member.member_id}({member.subscription.decode()}->{member.assignment.decode()})"
        for member in snapshot.members
    )
    return f"write generation={snapshot.generation} leader={snapshot.leader or '-'} [{members}]"
