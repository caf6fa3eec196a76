package format

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestGoodDocumentsLoadAndSurviveConversion(t *testing.T) {
	for _, c := range goodYAML {
		t.Run(c.name, func(t *testing.T) {
			v, _, err := Read("good.yaml", []byte(c.yaml), nil)
			if err != nil {
				t.Fatal(err)
			}
			roundTrip(t, v)
		})
	}
}

func TestBadDocumentsAreRefusedWithPlaceAndRemedy(t *testing.T) {
	for _, c := range badYAML {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := Read("bad.yaml", []byte(c.yaml), nil)
			var errs Errors
			if !errors.As(err, &errs) {
				t.Fatalf("got %v", err)
			}
			got := make([]string, len(errs))
			for i, e := range errs {
				got[i] = fmt.Sprintf("%d: %s", e.Line, strings.TrimPrefix(e.Error(), fmt.Sprintf("bad.yaml:%d: ", e.Line)))
				if !strings.Contains(got[i], "; ") {
					t.Errorf("no remedy: %s", got[i])
				}
			}
			same := len(got) == len(c.want)
			for i := range min(len(got), len(c.want)) {
				// What ends in "; " leaves the remedy open, what ends in ": " the details.
				open := strings.HasSuffix(c.want[i], "; ") || strings.HasSuffix(c.want[i], ": ")
				same = same && (got[i] == c.want[i] || open && strings.HasPrefix(got[i], c.want[i]))
			}
			if !same {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
		})
	}
}
