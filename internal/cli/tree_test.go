package cli

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// walk calls f for every verb, the program itself left out.
func walk(cmd *cobra.Command, f func(*cobra.Command)) {
	for _, c := range cmd.Commands() {
		if c.Name() == "help" {
			continue
		}
		f(c)
		walk(c, f)
	}
}

func TestHelpOfEveryVerb(t *testing.T) {
	env := newTestEnv(t)
	walk(newRootCommand(env.Env), func(c *cobra.Command) {
		if c.Short == "" || strings.HasSuffix(c.Short, ".") {
			t.Errorf("%s: its summary is %q", c.CommandPath(), c.Short)
		}
		if c.Long == "" {
			t.Errorf("%s does not say when to use it", c.CommandPath())
		}
		if !strings.Contains(c.Example, "trellis "+strings.TrimPrefix(c.CommandPath(), "trellis ")) {
			t.Errorf("%s has no example of its own: %q", c.CommandPath(), c.Example)
		}
		args := append(strings.Fields(strings.TrimPrefix(c.CommandPath(), "trellis ")), "--help")
		if got := env.run(args...); got != 0 || !strings.Contains(env.out.String(), c.Example) {
			t.Errorf("trellis %s: exit status %d, without the example", strings.Join(args, " "), got)
		}
	})
}

// docs/verbs.md names every verb, alias and flag, and no other flag.
func TestDocumentation(t *testing.T) {
	text, err := os.ReadFile("../../docs/verbs.md")
	if err != nil {
		t.Fatal(err)
	}
	sections := map[string]string{}
	for _, part := range strings.Split(string(text), "\n## ")[1:] {
		head, body, _ := strings.Cut(part, "\n")
		sections[strings.Trim(head, "`")] = body
	}
	known := map[string]bool{"--help": true, "--version": true}
	root := newRootCommand(newTestEnv(t).Env)
	root.PersistentFlags().VisitAll(func(f *pflag.Flag) {
		known["--"+f.Name] = true
		if !strings.Contains(string(text), "--"+f.Name) {
			t.Errorf("--%s is not documented", f.Name)
		}
	})
	walk(root, func(c *cobra.Command) {
		name := strings.TrimPrefix(c.CommandPath(), "trellis ")
		if strings.HasPrefix(name, "bench") {
			return // has a page of its own
		}
		body, ok := sections[name]
		if !ok && !c.HasSubCommands() {
			t.Errorf("docs/verbs.md has no section %q", "## `"+name+"`")
			return
		}
		for _, alias := range c.Aliases {
			if !strings.Contains(body, "`"+alias+"`") {
				t.Errorf("the alias %s of %s is not documented", alias, name)
			}
		}
		c.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			known["--"+f.Name] = true
			if f.Name != "help" && !strings.Contains(body, "`--"+f.Name) {
				t.Errorf("--%s of %s is not documented", f.Name, name)
			}
		})
	})
	for _, word := range strings.FieldsFunc(string(text), func(r rune) bool {
		return r != '-' && (r < 'a' || r > 'z')
	}) {
		if strings.HasPrefix(word, "--") && len(word) > 2 && word[2] != '-' && !known[word] {
			t.Errorf("docs/verbs.md documents %s, which no verb has", word)
		}
	}
}

func TestCompletion(t *testing.T) {
	_, env := startFake(t)
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"down", ""}, []string{"triangle"}},
		{[]string{"down", "x"}, nil},
		{[]string{"show", "tri"}, []string{"triangle"}},
		{[]string{"show", "triangle/"}, []string{"triangle/a", "triangle/b", "triangle/c"}},
		{[]string{"exec", ""}, []string{"triangle/"}},
		{[]string{"console", "triangle/b"}, []string{"triangle/b"}},
		{[]string{"capture", "triangle/a"}, []string{"triangle/a:"}},
		{[]string{"capture", "triangle/a:"}, []string{"triangle/a:eth1", "triangle/a:eth2"}},
		{[]string{"link", "set", "triangle", ""}, []string{"ab", "bc", "ca"}},
		{[]string{"substrate", "forget", "h"}, []string{"host1", "host2"}},
		{[]string{"ls", "-o", ""}, []string{"table", "json", "yaml"}},
		{[]string{"completion", ""}, []string{"bash", "zsh", "fish"}},
	} {
		if got := env.run(append([]string{"__complete"}, c.args...)...); got != 0 {
			t.Errorf("%v: exit status %d: %s", c.args, got, env.err.String())
		}
		var words []string
		for line := range strings.Lines(env.out.String()) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, ":") {
				words = append(words, line)
			}
		}
		if !slices.Equal(words, c.want) {
			t.Errorf("trellis %s completes to %q, want %q", strings.Join(c.args, " "), words, c.want)
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if env.run("completion", shell) != 0 || !strings.Contains(env.out.String(), "trellis") {
			t.Errorf("no script for %s: %s", shell, env.err.String())
		}
	}
	env.RunDir += "/none"
	if env.run("__complete", "down", "") != 0 {
		t.Error("completion without a service fails")
	}
}
