// Command promql evaluates queries with Prometheus' own engine over scraped pages, without a server.
//
// Standard input is JSON: {"pages": [{"labels": {...}, "seconds": 60, "text": "..."}], "at": 120,
// "queries": ["up"], "rules": "groups: ..."}. Each page is a scrape in the text format; its samples get the labels and
// the time (seconds from an arbitrary start). Standard output is {"results": [{"error": "", "series": [{"metric":
// {...}, "value": "1"}]}], "rules": ["error"]}: one result per query, at the time `at`, and what is wrong with the rules.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/tsdb"
)

type page struct {
	Labels  map[string]string `json:"labels"`
	Seconds float64           `json:"seconds"`
	Text    string            `json:"text"`
}

type request struct {
	Pages   []page   `json:"pages"`
	At      float64  `json:"at"`
	Queries []string `json:"queries"`
	Rules   string   `json:"rules"`
}

type series struct {
	Metric map[string]string `json:"metric"`
	Value  string            `json:"value"` // as Prometheus' API writes it, since JSON has no NaN
}

type result struct {
	Error  string   `json:"error"`
	Series []series `json:"series"`
}

type answer struct {
	Results []result `json:"results"`
	Rules   []string `json:"rules"`
}

// start is the instant that `seconds` count from; any will do that is not before 1970.
var start = time.Unix(1_700_000_000, 0)

func at(seconds float64) time.Time {
	return start.Add(time.Duration(seconds * float64(time.Second)))
}

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer) error {
	var given request
	if err := json.NewDecoder(in).Decode(&given); err != nil {
		return err
	}
	directory, err := os.MkdirTemp("", "promql")
	if err != nil {
		return err
	}
	defer os.RemoveAll(directory)
	db, err := tsdb.Open(directory, slog.New(slog.DiscardHandler), nil, tsdb.DefaultOptions(), nil)
	if err != nil {
		return err
	}
	defer db.Close()
	for _, each := range given.Pages {
		if err := load(db, each); err != nil {
			return err
		}
	}
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 50_000_000, Timeout: time.Minute})
	made := answer{Rules: []string{}}
	for _, query := range given.Queries {
		made.Results = append(made.Results, evaluate(engine, db, query, at(given.At)))
	}
	if given.Rules != "" {
		_, found := rulefmt.Parse([]byte(given.Rules), false)
		for _, each := range found {
			made.Rules = append(made.Rules, each.Error())
		}
	}
	return json.NewEncoder(out).Encode(made)
}

// load appends the samples of one page.
func load(db *tsdb.DB, given page) error {
	parser, err := textparse.New([]byte(given.Text), "text/plain", "", false, false, false, labels.NewSymbolTable())
	if parser == nil {
		return err
	}
	appender := db.Appender(context.Background())
	for {
		entry, err := parser.Next()
		if errors.Is(err, io.EOF) {
			return appender.Commit()
		}
		if err != nil {
			return errors.Join(err, appender.Rollback())
		}
		if entry != textparse.EntrySeries {
			continue
		}
		_, _, value := parser.Series()
		var read labels.Labels
		parser.Labels(&read)
		builder := labels.NewBuilder(read)
		for name, value := range given.Labels {
			builder.Set(name, value)
		}
		if _, err := appender.Append(0, builder.Labels(), at(given.Seconds).UnixMilli(), value); err != nil {
			return errors.Join(err, appender.Rollback())
		}
	}
}

func evaluate(engine *promql.Engine, db *tsdb.DB, text string, when time.Time) result {
	query, err := engine.NewInstantQuery(context.Background(), db, nil, text, when)
	if err != nil {
		return result{Error: err.Error()}
	}
	defer query.Close()
	answered := query.Exec(context.Background())
	if answered.Err != nil {
		return result{Error: answered.Err.Error()}
	}
	vector, err := answered.Vector()
	if err != nil {
		return result{Error: err.Error()}
	}
	found := result{Series: []series{}}
	for _, sample := range vector {
		found.Series = append(found.Series, series{Metric: sample.Metric.Map(), Value: strconv.FormatFloat(sample.F, 'g', -1, 64)})
	}
	return found
}
