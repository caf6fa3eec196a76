package links

// Shrink makes the socket's buffer as small as a burst of changes overruns.
func Shrink(t *Table, bytes int) {
	if err := t.monitor.SetBuffer(bytes); err != nil {
		panic(err)
	}
}

// Pause keeps the table from taking notifications in until resume is called.
func Pause(t *Table) (resume func()) {
	t.mu.Lock()
	return t.mu.Unlock
}
