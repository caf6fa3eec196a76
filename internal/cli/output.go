package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
)

// Output formats of the verbs that print something.
const (
	formatTable = "table"
	formatJSON  = "json"
	formatYAML  = "yaml"
)

// choice is a flag that takes one of a few words.
type choice struct {
	value   string
	allowed []string
}

func (c *choice) String() string { return c.value }
func (c *choice) Type() string   { return strings.Join(c.allowed, "|") }

func (c *choice) Set(s string) error {
	if !slices.Contains(c.allowed, s) {
		return fmt.Errorf("%q is none of %s", s, strings.Join(c.allowed, ", "))
	}
	c.value = s
	return nil
}

// choiceFlag adds the flag -o/--output with the words allowed, the first being
// the default.
func choiceFlag(cmd *cobra.Command, usage string, allowed ...string) *choice {
	c := &choice{value: allowed[0], allowed: allowed}
	cmd.Flags().VarP(c, "output", "o", usage)
	if err := cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(allowed, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // the flag was added one line above
	}
	return c
}

// outputFlag adds -o table|json|yaml.
func outputFlag(cmd *cobra.Command) *choice {
	return choiceFlag(cmd, "how to print the result", formatTable, formatJSON, formatYAML)
}

// print writes v in the format chosen; the table form is written by table.
func (e *Env) print(format *choice, v any, table func(io.Writer)) error {
	var buf bytes.Buffer
	switch format.value {
	case formatJSON, formatYAML:
		enc := json.NewEncoder(&buf)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		if err := enc.Encode(v); err != nil {
			return fmt.Errorf("encode the result: %w", err)
		}
		if format.value == formatYAML {
			text, err := jsonToYAML(buf.Bytes())
			if err != nil {
				return fmt.Errorf("encode the result as YAML: %w", err)
			}
			buf.Reset()
			buf.Write(text)
		}
	default:
		table(&buf)
	}
	if _, err := e.Stdout.Write(buf.Bytes()); err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	return nil
}

// jsonToYAML rewrites a JSON text as YAML in block style. Every JSON text is a
// YAML text, so the order of the keys stays as it is.
func jsonToYAML(text []byte) ([]byte, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return nil, err
	}
	var block func(*yaml.Node)
	block = func(n *yaml.Node) {
		if len(n.Content) > 0 || n.Kind == yaml.ScalarNode {
			n.Style = 0
		}
		for _, c := range n.Content {
			block(c)
		}
	}
	block(&doc)
	var buf bytes.Buffer
	enc := yaml.NewEncoder(&buf)
	enc.SetIndent(2)
	if err := enc.Encode(&doc); err != nil {
		return nil, err
	}
	return buf.Bytes(), enc.Close()
}

// table lays out rows in columns two spaces apart. A column whose heading
// starts with ">" is set flush right; without any heading there is no first line.
type table struct {
	head []string
	rows [][]string
}

func newTable(head ...string) *table { return &table{head: head} }

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

func (t *table) write(w io.Writer) {
	right := make([]bool, len(t.head))
	width := make([]int, len(t.head))
	head := make([]string, len(t.head))
	for i, h := range t.head {
		head[i], right[i] = strings.CutPrefix(h, ">")
		width[i] = utf8.RuneCountInString(head[i])
	}
	for _, row := range t.rows {
		for i, c := range row {
			width[i] = max(width[i], utf8.RuneCountInString(c))
		}
	}
	rows := t.rows
	if strings.Join(head, "") != "" {
		rows = append([][]string{head}, rows...)
	}
	for _, row := range rows {
		var line strings.Builder
		for i, c := range row {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(c))
			if i > 0 {
				line.WriteString("  ")
			}
			if right[i] {
				line.WriteString(pad + c)
			} else {
				line.WriteString(c + pad)
			}
		}
		fmt.Fprintln(w, strings.TrimRight(line.String(), " "))
	}
}

// section writes the table after an empty line, unless it has no rows.
func (t *table) section(w io.Writer) {
	if len(t.rows) > 0 {
		fmt.Fprintln(w)
		t.write(w)
	}
}

// count says "1 node", "2 nodes".
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
