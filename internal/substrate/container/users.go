package container

import (
	"hash/fnv"
	"path/filepath"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// usersFile is where in a node's assembly directory its user namespace is mounted for
// the runtime to join.
const usersFile = "users"

// userNamespace says how a node's user namespace is made (own_namespace in init.c).
type userNamespace struct {
	// owner is the user id that makes it: one of the VNet's range, of which the machine
	// has no other processes. As what is counted by user is counted as that id's, each
	// node has the machine's quota of it, and none has root's.
	owner uint32
	base  uint32
	file  string
}

// userNamespaceOf gives nodes owners by their names. Two nodes of a network that have
// one by chance share its quotas.
func (o oci) userNamespaceOf(s *Spec) *userNamespace {
	u := &userNamespace{base: s.IDBase, file: filepath.Join(assemblyDir(s.ID), usersFile)}
	if o.ownsQuotas() {
		h := fnv.New32a()
		_, _ = h.Write([]byte(s.Node)) // never fails
		u.owner = s.IDBase + h.Sum32()%idCount
	}
	return u
}

// ownsQuotas tells whether nodes can have owners of their own. runc sets the limits of
// a process (RLIMIT_…) from outside of its namespace: the maker may, who is root then,
// and else only who has CAP_SYS_RESOURCE, which some containers' root lacks.
func (o oci) ownsQuotas() bool { return o.hideCgroups || SysResource() }

// SysResource tells whether this process has CAP_SYS_RESOURCE.
var SysResource = sync.OnceValue(func() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have [2]unix.CapUserData
	return unix.Capget(&header, &have[0]) == nil && have[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
})

// arguments are those of "init enter"; a nil one makes none.
func (u *userNamespace) arguments() []string {
	if u == nil {
		return []string{"0", "0", "-"}
	}
	return []string{strconv.FormatUint(uint64(u.owner), 10), strconv.FormatUint(uint64(u.base), 10), u.file}
}
